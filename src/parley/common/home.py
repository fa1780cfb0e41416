"""Finds the home, which is the directory with config.toml, the database and the sockets of all servers that share
the home.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["SERVER_LOG", "SOCKET", "NamedHome", "named_home"]

SOCKET: Final = "serve.sock"
"""The file name of the resident server's socket."""
SERVER_LOG: Final = "serve.log"
"""The file name of the log of a resident server that runs in the background."""


class NamedHome(NamedTuple):
    """The path of the home, and the environment variable that names it."""

    path: str
    variable: str


def named_home(environ: Mapping[str, str], directory: str) -> NamedHome | None:
    """Return the home that the environment variables in `environ` name, even if the home does not exist. Return
    None if they name no home.

    A relative path is resolved against `directory`.
    """
    for variable in ("PARLEY_HOME", "CODEX_HOME"):
        if given := environ.get(variable):
            return NamedHome(os.path.join(directory, given), variable)
    if user := environ.get("HOME"):
        return NamedHome(os.path.join(directory, user, ".parley"), "HOME")
    return None
