"""What a call asked for, as it may be written down: without values of headers and variables, which are secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from parley.config.locate import KeyPath, read_key
from parley.config.types import Wanted

__all__ = ["kept", "wanted_again"]

_SECRET: Final = {("model_providers", "http_headers"), ("mcp_servers", "env")}
"""A table of named tables, and which entry of each is a secret."""
_DEPTH: Final = 3


def kept(wanted: Wanted) -> dict[str, Any]:
    """What was asked for, and nothing that was not."""
    asked = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) is not None}
    if "config" in asked:
        asked["config"] = _pruned((), asked["config"], lambda key: read_key(key)[0]) or {}
    return asked


def wanted_again(asked: dict[str, Any]) -> Wanted:
    """What `kept` kept."""
    return msgspec.convert(asked, Wanted)


def _pruned(path: KeyPath, value: Any, parts: Callable[[str], KeyPath] = lambda key: (key,)) -> Any:
    """The value without secrets; None: it is nothing else. `parts` is what its own keys stand for."""
    if len(path) >= _DEPTH and (path[0], path[2]) in _SECRET:
        return None
    if not isinstance(value, dict):
        return value
    rest = {key: left for key, one in value.items() if (left := _pruned((*path, *parts(key)), one)) is not None}
    return rest if rest or not value else None
