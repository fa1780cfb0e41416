"""Makes the system calls of Landlock and `prctl`, for which the standard library has no functions.

The numbers and structs are from the headers of the Linux kernel. The callers choose the rights of a sandbox. The
fork server loads this module, so the module imports neither `typing` nor `enum`.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

# set as in `typing`, because importing `typing` would take a third of the fork server's start time
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

__all__ = [
    "PR_SET_NO_NEW_PRIVS",
    "abi_version",
    "add_rule",
    "check",
    "create_ruleset",
    "libc",
    "prctl",
    "restrict_self",
    "syscall",
]

# These system call numbers are the same on all architectures.
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1
PR_SET_NO_NEW_PRIVS: Final = 38

_RULESET: Final = struct.Struct("=QQQ")
"""The format of `struct landlock_ruleset_attr`. An older kernel accepts unknown fields if they are zero."""
_BENEATH: Final = struct.Struct("=Qi")
"""The format of `struct landlock_path_beneath_attr`: the rights, and the descriptor of the path."""
_FOR_DIRECTORIES: Final = sum(1 << bit for bit in range(3, 14))
"""The rights that a rule for a file cannot grant, from READ_DIR to REFER, as a bit mask."""

libc: Final = ctypes.CDLL(None, use_errno=True)

_add: Final = libc["syscall"]  # the argument types are declared for speed, because there can be hundreds of rules
_add.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long)


def abi_version() -> int:
    """Return the version of the kernel's Landlock ABI.

    Raises:
        OSError: the kernel does not have Landlock (ENOSYS), or Landlock is disabled (EOPNOTSUPP).
    """
    return syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)


def create_ruleset(files: int, network: int = 0, scoped: int = 0) -> int:
    """Create a ruleset and return its descriptor.

    The ruleset denies the rights `files` and `network`, except where a rule grants them. `scoped` restricts signals
    and abstract Unix sockets. All three are bit masks.
    """
    handled = _RULESET.pack(files, network, scoped)
    return syscall(_CREATE_RULESET, handled, len(handled), 0)


def add_rule(ruleset: int, place: int, rights: int) -> None:
    """Grant the rights `rights` to the file or directory that the descriptor `place` refers to. Rights to a
    directory also apply to all files and directories below it.

    For a file, rights that only a directory can have are omitted.
    """
    if rights & _FOR_DIRECTORIES and not stat.S_ISDIR(os.fstat(place).st_mode):
        rights &= ~_FOR_DIRECTORIES
    if rights:
        check(_add(_ADD_RULE, ruleset, _PATH_BENEATH, _BENEATH.pack(rights, place), 0))


def restrict_self(ruleset: int) -> None:
    """Apply a ruleset permanently to the calling thread and to every process that the thread starts.

    Raises:
        OSError: the ruleset cannot be applied.
    """
    syscall(_RESTRICT_SELF, ruleset, 0)


def prctl(option: int, argument: int, pointer: object = None) -> None:
    zero = ctypes.c_ulong(0)
    check(libc.prctl(option, ctypes.c_ulong(argument), pointer, zero, zero))


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call by its number and return its result.

    Raises:
        OSError: the system call failed.
    """
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return check(libc.syscall(ctypes.c_long(number), *words))


def check(result: int) -> int:
    """Return `result`, the result of a C function.

    Raises:
        OSError: the result is negative. The error has the current errno.
    """
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
