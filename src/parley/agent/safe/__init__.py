"""Commands that can do no harm: they read and print, whatever their words say, and so nobody has to be asked.

A command that is not known is not safe; the sandbox holds those that are as well (docs/security.md). Knows
how a command is put together. Words of scripts are read by `lexer.py`, options of programs are listed in
`programs.py`, files are looked up by `resolving.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from parley.agent.safe.lexer import commands_in
from parley.agent.safe.programs import only_reads
from parley.agent.safe.resolving import is_out_of_reach, lies_out_of_reach
from parley.ports.tools import RunCommand

__all__ = ["commands_in", "is_safe"]

_SYSTEM: Final = ("/bin/", "/usr/bin/")
"""The only places that a program may be named with."""

_BUILT_IN: Final = frozenset({"cd", "echo", "false", "pwd", "true"})
"""What every shell does by itself, whatever files there are of that name."""

_LOGIN_FILES: Final = (".bash_profile", ".bash_login", ".profile", ".bashrc", ".bash_logout")
"""What a login shell runs out of the home, or what those usually run."""


def is_safe(action: RunCommand, writable: Sequence[str]) -> bool:
    """Whether a command is known to do nothing but read and print.

    `writable` are the directories, absolute and without links, in which the agent may have written:
    a program there may be anything.
    """
    if not action.argv or any("\0" in word for word in (*action.argv, action.cwd)):
        return False
    shell, *rest = action.argv
    match _name(shell), rest:
        case ("bash", ["-c" | "-lc", script]) | ("sh", ["-c", script]):
            is_login = rest[0] == "-lc"
            return (
                is_out_of_reach(shell, search_path=action.search_path, writable=writable)
                and not (is_login and _may_be_told_otherwise(action.home, writable))
                and _is_safe_script(script, action.search_path, writable)
            )
        case _:
            return _is_safe_command(action.argv, action.search_path, writable)


def _is_safe_script(script: str, search_path: str | None, writable: Sequence[str]) -> bool:
    commands = commands_in(script) or []
    return commands != [] and all(
        only_reads(argv[0], argv[1:]) if argv[0] in _BUILT_IN else _is_safe_command(argv, search_path, writable)
        for argv in commands
    )


def _is_safe_command(argv: Sequence[str], search_path: str | None, writable: Sequence[str]) -> bool:
    name = _name(argv[0])
    return (
        name is not None
        and only_reads(name, argv[1:])
        and is_out_of_reach(argv[0], search_path=search_path, writable=writable)
    )


def _name(program: str) -> str | None:
    """What a program is called, if it is named as one that the system has."""
    folder, slash, name = program.rpartition("/")
    return name if folder + slash in ("", *_SYSTEM) else None


def _may_be_told_otherwise(home: str | None, writable: Sequence[str]) -> bool:
    """Whether the agent may have written what a login shell runs before the script."""
    home = os.path.expanduser("~") if home is None else home  # a shell without one looks the user's up
    return not home.startswith("/") or not all(
        lies_out_of_reach(os.path.join(home, name), writable) for name in _LOGIN_FILES
    )
