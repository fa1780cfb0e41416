"""The settings that a resident server reads only when it starts."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from parley.config.load import Loader
from parley.errors import ConfigError

__all__ = ["restart_digest"]


def restart_digest(loader: Loader) -> str | None:
    """Return a digest of the settings that a running server does not reload; None if the settings cannot be used.

    Two servers with the same digest use the same values of these settings.
    """
    try:
        serve, node = loader.serve_settings(), loader.node_settings()
        store = loader.store_url() or ""
    except ConfigError:
        return None
    http = (serve.http, serve.host, serve.port, serve.public_url, serve.tls_cert, serve.tls_key)
    return sha256(msgspec.json.encode((http, (node.id, node.url), str(store)))).hexdigest()
