"""Reads the webhook and its signing key from config.toml and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from parley.config.sources import Source, setting_error
from parley.config.types import Secret, Webhook, WebhookTable
from parley.errors import BadSetting

__all__ = ["read_webhook"]

_WEBHOOK_PREFIX: Final = "whsec_"
"""The prefix of a webhook secret that is encoded in base64."""
_MIN_WEBHOOK_KEY_BYTES: Final = 24


def read_webhook(file: Source, environ: Mapping[str, str]) -> Webhook | None:
    """Return the webhook that config.toml (`file`) defines; None if it defines no webhook.

    Raises:
        BadSetting: the secret is missing, invalid or too short.
    """
    table = WebhookTable(**file.values.get("webhook", {}))
    if table.url is None:
        return None

    def refused(detail: str) -> BadSetting:
        return setting_error([file], ("webhook", "secret_env"), detail)

    if not table.secret_env:
        raise refused("missing, and a webhook needs it")
    if not (secret := environ.get(table.secret_env)):
        raise refused(f"the environment variable `{table.secret_env}` is not set")
    try:
        key = _webhook_key(secret)
    except ValueError:
        raise refused(f"the value of `{table.secret_env}` is not base64 after `{_WEBHOOK_PREFIX}`") from None
    if len(key) < _MIN_WEBHOOK_KEY_BYTES:
        raise refused(f"the value of `{table.secret_env}` has fewer than {_MIN_WEBHOOK_KEY_BYTES} bytes")
    return Webhook(url=table.url, key=Secret(key), events=table.events)


def _webhook_key(secret: str) -> bytes:
    """Return the signing key that a webhook secret contains. Raises ValueError if the secret is invalid."""
    if not secret.startswith(_WEBHOOK_PREFIX):
        return secret.encode(errors="surrogateescape")
    import base64  # imported here: few homes have a webhook

    return base64.b64decode(secret.removeprefix(_WEBHOOK_PREFIX), validate=True)
