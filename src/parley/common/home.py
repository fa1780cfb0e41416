"""The home: the directory that holds config.toml, the database and the sockets of all servers that share it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["SERVER_LOG", "SOCKET", "NamedHome", "named_home"]

SOCKET: Final = "serve.sock"
"""The socket of the resident server."""
SERVER_LOG: Final = "serve.log"
"""The log of a resident server that runs in the background."""


class NamedHome(NamedTuple):
    """The home, and the variable that names it."""

    path: str
    variable: str


def named_home(environ: Mapping[str, str], directory: str) -> NamedHome | None:
    """Return the home that the environment names, even if it does not exist; None if the environment names none.

    Relative paths begin at `directory`.
    """
    for variable in ("PARLEY_HOME", "CODEX_HOME"):
        if given := environ.get(variable):
            return NamedHome(os.path.join(directory, given), variable)
    if user := environ.get("HOME"):
        return NamedHome(os.path.join(directory, user, ".parley"), "HOME")
    return None
