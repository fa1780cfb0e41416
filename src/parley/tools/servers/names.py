"""What the tools of tool servers are called (docs/protocol.md, other tools of the model)."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["SERVER_NAME_PATTERN", "is_server_name", "qualified_name", "unmistakable_name"]

SERVER_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]+$"

_ALLOWED: Final = re.compile("[a-zA-Z0-9_-]+")
_OTHER: Final = re.compile("[^a-zA-Z0-9_-]")

MAX_CHARACTERS: Final = 64
"""The longest name of a function that model APIs take."""

KEPT_CHARACTERS: Final = 24
"""What is left beside the forty digits of a SHA-1."""


def is_server_name(name: str) -> bool:
    return _ALLOWED.fullmatch(name) is not None


def qualified_name(server: str, tool: str) -> str:
    """The name under which a model is offered a tool.

    A name that is too long, or that has characters no model API takes, keeps its beginning and
    stays unique by its digest.
    """
    name = f"{server}__{tool}"
    if len(name) <= MAX_CHARACTERS and _ALLOWED.fullmatch(name):
        return name
    return _digested(name, of=name)


def unmistakable_name(server: str, tool: str) -> str:
    """The name of a tool whose `qualified_name` another one has: `a` with `b__c`, and `a__b` with `c`."""
    return _digested(f"{server}__{tool}", of=f"{server}\0{tool}")  # no server has NUL in its name


def _digested(name: str, *, of: str) -> str:
    digest = hashlib.sha1(of.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return _OTHER.sub("_", name[:KEPT_CHARACTERS]) + digest
