"""The names of the tools of tool servers for a model (docs/protocol.md, other tools of the model)."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["SERVER_NAME_PATTERN", "disambiguated_name", "is_server_name", "qualified_name"]

SERVER_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]+$"

_ALLOWED: Final = re.compile("[a-zA-Z0-9_-]+")
_OTHER: Final = re.compile("[^a-zA-Z0-9_-]")

MAX_CHARACTERS: Final = 64
"""The longest function name that model APIs accept."""

KEPT_CHARACTERS: Final = 24
"""The part of a name that is kept before the forty digits of its SHA-1."""


def is_server_name(name: str) -> bool:
    return _ALLOWED.fullmatch(name) is not None


def qualified_name(server: str, tool: str) -> str:
    """Return the name under which a model is offered a tool.

    If a name is too long or has characters that model APIs refuse, its beginning is kept and a digest makes it
    unique.
    """
    name = f"{server}__{tool}"
    if len(name) <= MAX_CHARACTERS and _ALLOWED.fullmatch(name):
        return name
    return _digested(name, of=name)


def disambiguated_name(server: str, tool: str) -> str:
    """Return a unique name for a tool whose `qualified_name` is also the name of another tool. Example: tool
    `b__c` of server `a`, and tool `c` of server `a__b`.
    """
    return _digested(f"{server}__{tool}", of=f"{server}\0{tool}")  # no server name contains NUL


def _digested(name: str, *, of: str) -> str:
    digest = hashlib.sha1(of.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return _OTHER.sub("_", name[:KEPT_CHARACTERS]) + digest
