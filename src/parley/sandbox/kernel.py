"""Landlock asked of the kernel, for which Python has no words: its version, and a thread that is to be confined.

Commands are confined by whoever starts them; this is for work that the server does itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable
from typing import Final

from parley.errors import SandboxUnavailable
from parley.ports.commands import Root, Rule
from parley.sandbox.rights import WRITE, WRITE_TO_FILE
from parley.wire.text import quoted

__all__ = ["confine", "landlock_abi"]

# Numbers of the kernel, the same on all machines.
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_RULESET: Final = struct.Struct("=Q")
"""`struct landlock_ruleset_attr`, as far as it concerns files."""
_BENEATH: Final = struct.Struct("=Qi")
"""`struct landlock_path_beneath_attr`."""
_library: Final = ctypes.CDLL(None, use_errno=True)


def landlock_abi() -> int:
    """The version of the kernel's Landlock.

    Raises:
        OSError: it has none (ENOSYS), or it is switched off (EOPNOTSUPP).
    """
    return _call(_CREATE_RULESET, None, 0, _VERSION)


def confine(rules: Iterable[Rule], roots: Iterable[Root]) -> None:
    """From here on this thread, and what it starts, writes only where the rules allow. There is no way back.

    Raises:
        SandboxUnavailable: the kernel refused, or one of the roots is not what it was.
    """
    known = {root.path: (root.device, root.inode) for root in roots}
    try:
        ruleset = _call(_CREATE_RULESET, _RULESET.pack(WRITE), _RULESET.size, 0)
        try:
            for rule in rules:
                _add(ruleset, rule, known.get(rule.path))
            if _library.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
                raise _last_error()
            _call(_RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
    except OSError as error:
        raise SandboxUnavailable(f"Landlock: {error.strerror}") from error


def _add(ruleset: int, rule: Rule, must_be: tuple[int, int] | None) -> None:
    try:
        place = os.open(rule.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # it is gone or out of reach, and a rule does nothing but grant
    try:
        found = os.fstat(place)
        if must_be is not None and (found.st_dev, found.st_ino) != must_be:
            raise SandboxUnavailable(
                f"{quoted(rule.path)} may not be written to any more: another has taken its place"
            )
        if stat.S_ISLNK(found.st_mode):
            return
        rights = rule.rights & (WRITE if stat.S_ISDIR(found.st_mode) else WRITE_TO_FILE)
        if rights:
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, _BENEATH.pack(rights, place), 0)
    finally:
        os.close(place)


def _call(number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer: int = _library.syscall(ctypes.c_long(number), *words)
    if answer < 0:
        raise _last_error()
    return answer


def _last_error() -> OSError:
    number = ctypes.get_errno() or errno.EINVAL
    return OSError(number, os.strerror(number))
