"""The names under which a model calls the tools of tool servers (docs/protocol.md#tool-servers)."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["SERVER_NAME_PATTERN", "disambiguated_name", "is_server_name", "qualified_name"]

SERVER_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]+$"

_ALLOWED: Final = re.compile("[a-zA-Z0-9_-]+")
_OTHER: Final = re.compile("[^a-zA-Z0-9_-]")

MAX_CHARACTERS: Final = 64
"""The maximum length, in characters, of a function name that all model APIs accept."""

KEPT_CHARACTERS: Final = 24
"""The number of characters of a long name that are kept. The forty hexadecimal digits of the name's SHA-1 follow.
"""


def is_server_name(name: str) -> bool:
    return _ALLOWED.fullmatch(name) is not None


def qualified_name(server: str, tool: str) -> str:
    """Return the name under which a model calls the tool `tool` of the tool server `server`.

    If the name `SERVER__TOOL` is too long, or contains characters that model APIs do not accept, the result
    consists of the beginning of the name and a digest of the whole name. The digest makes the result unique.
    """
    name = f"{server}__{tool}"
    if len(name) <= MAX_CHARACTERS and _ALLOWED.fullmatch(name):
        return name
    return _digested(name, of=name)


def disambiguated_name(server: str, tool: str) -> str:
    """Return a unique name for a tool whose `qualified_name` is also the name of another tool. For example, tool
    `b__c` of server `a` and tool `c` of server `a__b` have the same `qualified_name`.
    """
    return _digested(f"{server}__{tool}", of=f"{server}\0{tool}")  # server names never contain NUL


def _digested(name: str, *, of: str) -> str:
    digest = hashlib.sha1(of.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return _OTHER.sub("_", name[:KEPT_CHARACTERS]) + digest
