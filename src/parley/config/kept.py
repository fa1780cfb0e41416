"""What a call asked for, as it may be written down: what has an effect, without the secrets in it.

Secrets are the values of headers and variables, and who one is in an address. Keys that nobody knows are left out
with them: nothing depends on them, and what stands there may be a secret of some other program.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from parley.config.locate import KeyPath, read_key
from parley.config.schema import SETTINGS, Check, Named, Table
from parley.config.types import Wanted

__all__ = ["kept", "wanted_again"]

_SECRET: Final = {("model_providers", "http_headers"), ("mcp_servers", "env")}
"""A table of named tables, and which entry of each is a secret."""
_ADDRESSES: Final = {("model_providers", "base_url"), ("mcp_servers", "url")}
_DEPTH: Final = 3


def kept(wanted: Wanted) -> dict[str, Any]:
    """What was asked for, and nothing that was not."""
    asked = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) is not None}
    if "config" in asked:
        given = ((key, read_key(key)[0], value) for key, value in asked["config"].items())
        asked["config"] = {
            key: left for key, path, value in given if (left := _pruned(path, value, _check_at(path))) is not None
        }
    return asked


def wanted_again(asked: dict[str, Any]) -> Wanted:
    """What `kept` kept."""
    return msgspec.convert(asked, Wanted)


def _check_at(path: KeyPath) -> Check | None:
    """What looks at the value of a key; None: nobody does."""
    check: Check | None = SETTINGS
    for name in path:
        check = _check_below(check, name)
    return check


def _check_below(check: Check | None, name: str) -> Check | None:
    match check:
        case Table():
            return check.fields.get(name)
        case Named():
            return check.entry
        case _:
            return None


def _pruned(path: KeyPath, value: Any, check: Check | None) -> Any:
    """The value without what is left out; None: that is all of it."""
    place = (path[0], path[_DEPTH - 1]) if len(path) >= _DEPTH else None
    if check is None or place in _SECRET:
        return None
    if place in _ADDRESSES and isinstance(value, str):
        return _nobodys(value)
    if not isinstance(value, dict):
        return value
    rest = {
        name: left
        for name, one in value.items()
        if (left := _pruned((*path, name), one, _check_below(check, name))) is not None
    }
    return rest if rest or not value else None


def _nobodys(address: str) -> str:
    """The address without the name and password of whoever asks there."""
    from urllib.parse import urlsplit  # only where there is one

    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else address
