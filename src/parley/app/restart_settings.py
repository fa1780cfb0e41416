"""Reads the settings for which a resident server must be restarted when they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from parley.config.load import Loader
from parley.errors import ConfigError

if TYPE_CHECKING:
    from parley.app.http_choice import HttpChoice

__all__ = ["restart_settings"]


def restart_settings(loader: Loader, choice: HttpChoice | None) -> Mapping[str, object]:
    """Return the values of the settings that a running server does not reload, keyed by the name of the setting.
    The mapping is empty if the settings cannot be used.

    Options of the command line take precedence over the settings. `choice` contains the HTTP options; None if an
    option disables HTTP.
    """
    try:
        node = loader.node_settings()
        settings: dict[str, object] = {
            "node.id": node.id,
            "node.url": node.url,
            "store.url": str(loader.store_url() or ""),
        }
        if choice is not None:
            serve = choice.applied_to(loader.serve_settings())
            names = ("http", "host", "port", "public_url", "tls_cert", "tls_key")
            settings |= {f"serve.{name}": getattr(serve, name) for name in names}
    except ConfigError:
        return {}
    return settings
