"""Recognizes safe commands, which only read and print and therefore need no approval.

An unknown command is treated as unsafe. Safe commands also run in the sandbox (docs/security.md). This module
checks the structure of a command. `common/shell_lexer.py` reads scripts, `programs.py` lists the options of
programs, and `resolving.py` finds the files of programs.

The check runs on the event loop, so its running time is limited: a command that exceeds a limit is treated as
unsafe, each character is read a fixed number of times, and each program is looked up once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final

from parley.agent.safe.programs import only_reads
from parley.agent.safe.resolving import is_outside, is_program_outside
from parley.common import shell_lexer
from parley.ports.tools import RunCommand

__all__ = ["MAX_CHARACTERS", "MAX_COMMANDS", "commands_in", "is_safe"]

MAX_CHARACTERS: Final = 16 * 1024
"""The maximum length, in characters, of a script that is checked. A longer script is treated as unsafe. The limit
is low because all clients wait while the event loop checks a script.
"""

MAX_COMMANDS: Final = 100
"""The maximum number of commands in a safe script. The number is limited because each command takes time: its
options are checked, and its program is looked up.
"""

_NEVER_FIRST: Final = ("-", "+", "%")
"""Characters that a command must not begin with, because a shell interprets `-` or `+` at the start of a script as
its own options, and `%` at the start of a command as a reference to a job.
"""

_RESERVED: Final = shell_lexer.RESERVED | {"!", "[[", "]]", "{", "}"}

_SYSTEM: Final = ("/bin/", "/usr/bin/")
"""Directories of system programs. A safe program is given by its name alone or by a path in one of these
directories.
"""

_BUILT_IN: Final = frozenset({"cd", "echo", "false", "pwd", "true"})
"""Commands that are built into every shell, so no program file is run for them."""

_LOGIN_FILES: Final = (".bash_profile", ".bash_login", ".profile", ".bashrc", ".bash_logout")
"""Files in the user's home directory that a login shell runs, directly or through another of these files."""

_LOGIN_PLACES: Final = (
    *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin"),
    *("~/.local/bin", "~/bin"),
)
"""Directories in which a login shell may find programs. They do not depend on the inherited PATH, because the
start-up files of the shell set PATH.
"""


def is_safe(action: RunCommand, writable: Sequence[str]) -> bool:
    """Return whether a command is known to only read and print.

    `writable` lists the directories to which the agent may have written, as absolute paths without symbolic links.
    A program in one of these directories is not safe.
    """
    if not action.argv or sum(len(word) + 1 for word in action.argv) > MAX_CHARACTERS:
        return False
    if any("\0" in word for word in (*action.argv, action.cwd)):
        return False
    is_known = cache(partial(is_program_outside, search_path=action.search_path, writable=writable))
    shell, *rest = action.argv
    match _name(shell), rest:
        case "bash" | "sh", ["-c", script]:
            return is_known(shell) and _is_safe_script(script, is_known)
        case "bash", ["-lc", script]:
            # If HOME is not set, a shell also expands `~` to the home directory in the user database.
            home = os.path.expanduser("~") if action.home is None else action.home
            elsewhere = tuple(place.replace("~", home) for place in _LOGIN_PLACES)
            return (
                is_known(shell)
                and not _login_files_may_be_written(home, writable)
                and _is_safe_script(script, partial(is_known, elsewhere=elsewhere))
            )
        case _:
            return _is_safe_command(action.argv, is_known)


def commands_in(script: str) -> list[tuple[str, ...]] | None:
    """Return every command that a script may run, in order, each as a tuple of words. Return None if the script
    exceeds the limits of this module, or if it contains an assignment, a reserved word, or a command that different
    shells interpret differently.
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
    """Return the name of a program that is given by its name alone or by a path in `/bin` or `/usr/bin`; None for
    any other path.
    """
    folder, slash, name = program.rpartition("/")
    return name if folder + slash in ("", *_SYSTEM) else None


def _login_files_may_be_written(home: str, writable: Sequence[str]) -> bool:
    """Return whether the agent may have written a file in the home directory `home` that a login shell runs
    (`_LOGIN_FILES`). Return True if `home` is not an absolute path.
    """
    return not home.startswith("/") or not all(
        is_outside(os.path.join(home, name), writable) for name in _LOGIN_FILES
    )
