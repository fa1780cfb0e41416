"""Recognises safe commands. They only read and print, so they need no approval.

An unknown command is not safe, and safe commands run in the sandbox too (docs/security.md). Knows the structure of
a command. Scripts are read by `common/shell_lexer.py`, options of programs are listed in
`programs.py`, files are looked up by `resolving.py`. The check runs on the event loop: a command that is longer
than the limits is not safe, each character is read a fixed number of times, and each program is looked up
once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final

from parley.agent.safe.programs import only_reads
from parley.agent.safe.resolving import is_out_of_reach, lies_out_of_reach
from parley.common import shell_lexer
from parley.ports.tools import RunCommand

__all__ = ["MAX_CHARACTERS", "MAX_COMMANDS", "commands_in", "is_safe"]

MAX_CHARACTERS: Final = 16 * 1024
"""The longest script that is checked. Every client waits while the event loop checks a script."""

MAX_COMMANDS: Final = 100
"""The most commands that a safe script may have: each costs a check of options and look-ups of files."""

_NEVER_FIRST: Final = ("-", "+", "%")
"""Characters that a command must not begin with. A shell takes `-` or `+` at the start of a script as its own
options, and a command that begins with `%` as one of its jobs.
"""

_RESERVED: Final = shell_lexer.RESERVED | {"!", "[[", "]]", "{", "}"}

_SYSTEM: Final = ("/bin/", "/usr/bin/")
"""Directories that may be in the path of a safe program."""

_BUILT_IN: Final = frozenset({"cd", "echo", "false", "pwd", "true"})
"""Commands that every shell has built in, so that no file is run for them."""

_LOGIN_FILES: Final = (".bash_profile", ".bash_login", ".profile", ".bashrc", ".bash_logout")
"""Files of the home that a login shell runs, directly or from one of the others."""

_LOGIN_PLACES: Final = (
    *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin"),
    *("~/.local/bin", "~/bin"),
)
"""Directories in which a login shell may find programs, whatever PATH it is given: its start-up files set PATH."""


def is_safe(action: RunCommand, writable: Sequence[str]) -> bool:
    """Return whether a command is known to only read and print.

    `writable` are the directories, absolute and without links, to which the agent may have written. A program in
    one of them is not safe.
    """
    if not action.argv or sum(len(word) + 1 for word in action.argv) > MAX_CHARACTERS:
        return False
    if any("\0" in word for word in (*action.argv, action.cwd)):
        return False
    is_known = cache(partial(is_out_of_reach, search_path=action.search_path, writable=writable))
    shell, *rest = action.argv
    match _name(shell), rest:
        case "bash" | "sh", ["-c", script]:
            return is_known(shell) and _is_safe_script(script, is_known)
        case "bash", ["-lc", script]:
            home = os.path.expanduser("~") if action.home is None else action.home  # as the shell does it
            elsewhere = tuple(place.replace("~", home) for place in _LOGIN_PLACES)
            return (
                is_known(shell)
                and not _login_files_may_be_written(home, writable)
                and _is_safe_script(script, partial(is_known, elsewhere=elsewhere))
            )
        case _:
            return _is_safe_command(action.argv, is_known)


def commands_in(script: str) -> list[tuple[str, ...]] | None:
    """Return every command that the script may run, in order, each as its words; None if it is not understood.

    Returns None for a script beyond the limits of this module, and for a script with an assignment, a reserved
    word, or a command that a shell may read in another way.
    """
    commands = shell_lexer.commands_in(script) if len(script) <= MAX_CHARACTERS else None
    if commands is None or len(commands) > MAX_COMMANDS or not all(map(_is_plain, commands)):
        return None
    return commands


def _is_plain(command: tuple[str, ...]) -> bool:
    first = command[0]
    return first != "" and "=" not in first and first not in _RESERVED and not first.startswith(_NEVER_FIRST)


def _is_safe_script(script: str, is_known: Callable[[str], bool]) -> bool:
    commands = commands_in(script) or []
    return commands != [] and all(
        only_reads(argv[0], argv[1:]) if argv[0] in _BUILT_IN else _is_safe_command(argv, is_known)
        for argv in commands
    )


def _is_safe_command(argv: Sequence[str], is_known: Callable[[str], bool]) -> bool:
    name = _name(argv[0])
    return name is not None and only_reads(name, argv[1:]) and is_known(argv[0])


def _name(program: str) -> str | None:
    """Return the name of a program that is given by its name alone or by a system path; None for any other."""
    folder, slash, name = program.rpartition("/")
    return name if folder + slash in ("", *_SYSTEM) else None


def _login_files_may_be_written(home: str, writable: Sequence[str]) -> bool:
    """Return whether the agent may have written a file that a login shell runs before the script."""
    return not home.startswith("/") or not all(
        lies_out_of_reach(os.path.join(home, name), writable) for name in _LOGIN_FILES
    )
