"""What a call asked for, as it may be written down: what has an effect, without the secrets in it.

Secrets are the values of headers, query parameters and variables, the arguments of tool servers, and the user,
query and fragment in an address. Unknown keys are left out with them: nothing depends on them, and what stands
there may be a secret of some other program. Which keys of tool servers were left out is noted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from parley.config.locate import KeyPath, read_key
from parley.config.schema import SETTINGS, Check, Named, Table
from parley.config.types import Wanted

__all__ = ["kept", "wanted_again"]

_SECRET: Final = {
    ("model_providers", "*", "http_headers"),
    ("model_providers", "*", "query_params"),
    ("mcp_servers", "*", "args"),
    ("mcp_servers", "*", "env"),
    ("shell_environment_policy", "set"),
}
"""The settings that are secrets; `*` stands for a name that the user chose."""
_ADDRESSES: Final = {("model_providers", "*", "base_url"), ("mcp_servers", "*", "url")}
_OF_TOOL_SERVERS: Final = "mcp_servers"


def kept(wanted: Wanted) -> dict[str, Any]:
    """What was asked for, and nothing that was not."""
    asked = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) is not None}
    if "config" in asked:
        left_out: list[KeyPath] = []
        given = ((key, read_key(key)[0], value) for key, value in asked["config"].items())
        asked["config"] = {
            key: left
            for key, path, value in given
            if (left := _pruned(path, value, _check_at(path), left_out)) is not None
        }
        lost = [path for path in left_out if path[0] == _OF_TOOL_SERVERS]
        if lost:
            asked["not_stored"] = tuple(dict.fromkeys((*asked.get("not_stored", ()), *lost)))
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


def _pruned(path: KeyPath, value: Any, check: Check | None, left_out: list[KeyPath]) -> Any:
    """The value without what is left out, which is noted if it is a secret; None: that is all of it."""
    if check is None:
        return None
    if _is_in(_SECRET, path) and value:
        # Of a table its entries: another source may give some of them.
        left_out += [(*path, name) for name in value] if isinstance(value, dict) else [path]
        return None
    if _is_in(_ADDRESSES, path) and isinstance(value, str):
        address, lost = _without_secrets(value)
        left_out += [(*path, part) for part in lost]
        return address
    if not isinstance(value, dict):
        return value
    rest = {
        name: left
        for name, one in value.items()
        if (left := _pruned((*path, name), one, _check_below(check, name), left_out)) is not None
    }
    return rest if rest or not value else None


def _is_in(patterns: Iterable[KeyPath], path: KeyPath) -> bool:
    """Whether the key is one of these, or lies below one."""
    return any(
        len(path) >= len(pattern) and all(one in ("*", part) for one, part in zip(pattern, path, strict=False))
        for pattern in patterns
    )


def _without_secrets(address: str) -> tuple[str, list[str]]:
    """The address without the parts that may hold a secret, and which of them it had."""
    from urllib.parse import urlsplit  # only where there is one

    try:
        parts = urlsplit(address)
    except ValueError:
        return "", []
    _, at, place = parts.netloc.rpartition("@")
    found = {"user": at, "query": parts.query, "fragment": parts.fragment}
    lost = [part for part, text in found.items() if text]
    return (parts._replace(netloc=place, query="", fragment="").geturl() if lost else address), lost
