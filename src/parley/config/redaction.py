"""Removes secrets from the overrides of a call before the overrides are stored.

Secrets are the values of headers, query parameters and environment variables, the command-line arguments of tool
servers, and the user, query and fragment of a URL. Unknown keys are also removed, because they have no effect and
may contain a secret of another program. The field `not_stored` of the stored overrides lists the keys that were
removed from the settings of tool servers.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from parley.config.checks import Check, address, is_secret
from parley.config.schema import check_at, check_below
from parley.config.toml_lines import KeyPath, read_key
from parley.config.types import SettingsOverrides

__all__ = ["stored_arguments", "stored_overrides", "without_secrets"]

_OF_TOOL_SERVERS: Final = "mcp_servers"


def stored_arguments(overrides: SettingsOverrides) -> dict[str, Any]:
    """Return the overrides of a call in the form that is stored: with the secrets and unknown keys removed."""
    asked = {name: value for name in overrides.__struct_fields__ if (value := getattr(overrides, name)) is not None}
    if "config" in asked:
        left_out: list[KeyPath] = []
        given = ((key, read_key(key)[0], value) for key, value in asked["config"].items())
        asked["config"] = {
            key: left
            for key, path, value in given
            if (left := _pruned(path, value, check_at(path), left_out)) is not None
        }
        lost = [path for path in left_out if path[0] == _OF_TOOL_SERVERS]
        if lost:
            asked["not_stored"] = tuple(dict.fromkeys((*asked.get("not_stored", ()), *lost)))
    return asked


def stored_overrides(stored: dict[str, Any]) -> SettingsOverrides:
    """Decode stored overrides. `stored` is a mapping that `stored_arguments` returned."""
    return msgspec.convert(stored, SettingsOverrides)


def _pruned(path: KeyPath, value: Any, check: Check | None, left_out: list[KeyPath]) -> Any:
    """Remove the secrets and unknown keys from the value of the key `path`, and return the rest; None if nothing
    is left. `check` is the check for the key; None if the key is unknown.

    Add the paths of the removed secrets to `left_out`.
    """
    if check is None:
        return None
    if is_secret(check) and value:
        # Add each entry of a table, because another source may supply some of the entries.
        left_out += [(*path, name) for name in value] if isinstance(value, dict) else [path]
        return None
    if check is address and isinstance(value, str):
        shown, lost = without_secrets(value)
        left_out += [(*path, part) for part in lost]
        return shown
    if not isinstance(value, dict):
        return value
    rest = {
        name: left
        for name, one in value.items()
        if (left := _pruned((*path, name), one, check_below(check, name), left_out)) is not None
    }
    return rest if rest or not value else None


def without_secrets(url: str) -> tuple[str, list[str]]:
    """Return a URL without the parts that may contain a secret, and the names of the removed parts."""
    from urllib.parse import urlsplit  # imported here: most calls have no URL

    try:
        parts = urlsplit(url)
    except ValueError:
        return "", []
    _, at, place = parts.netloc.rpartition("@")
    found = {"user": at, "query": parts.query, "fragment": parts.fragment}
    lost = [part for part, text in found.items() if text]
    return (parts._replace(netloc=place, query="", fragment="").geturl() if lost else url), lost
