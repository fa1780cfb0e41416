"""Runs a program as on a kernel that lacks a feature.

A filter of system calls makes the feature fail for the program and its children; an empty file covers a missing
program. `python -m kit.system.kernels LACKS... -- COMMAND...` executes the command without these features.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from kit.attacks.calls import call, number

__all__ = ["BUBBLEWRAP", "Lack", "on_kernel"]

TESTS: Final = str(Path(__file__).parents[2])
BUBBLEWRAP: Final = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
"""Paths where bubblewrap may be installed."""


class Lack(Enum):
    """A feature that the kernel lacks."""

    USER_NAMESPACES = "user-namespaces"
    """User namespaces are disabled."""
    RIGHTS_IN_NAMESPACES = "rights-in-namespaces"
    """User namespaces can be created, but give no rights."""
    LANDLOCK = "landlock"
    """Landlock is not built into the kernel."""
    LANDLOCK_SWITCHED_ON = "landlock-switched-on"
    """Landlock is built into the kernel, but disabled."""
    BUBBLEWRAP = "bubblewrap"
    """The program bubblewrap is not installed."""


def on_kernel(without: Iterable[Lack], command: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs a command without these features."""
    if not (without := tuple(without)):
        return tuple(command)
    program = f"import sys; sys.path.insert(0, {TESTS!r}); from kit.system.kernels import main; main(sys.argv[1:])"
    return (sys.executable, "-I", "-S", "-c", program, *(lack.value for lack in without), "--", *command)


# --- in the process that becomes the command ---------------------------------------------

NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2
LOAD, EQUAL, ANY_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NUMBER_AT, FIRST_ARGUMENT_AT = 0, 16
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
LANDLOCK_CALLS: Final = (444, 445, 446)


def main(arguments: list[str]) -> None:
    """Execute the command after `--`, with the kernel features that are named before `--` disabled."""
    end = arguments.index("--")
    without, command = {Lack(word) for word in arguments[:end]}, arguments[end + 1 :]
    if Lack.BUBBLEWRAP in without:
        _cover(place for place in BUBBLEWRAP if os.path.exists(place))
    _refuse(without)
    os.execv(command[0], command)


def _cover(places: Iterable[str]) -> None:
    """Mount an empty file over these programs, for this process and its children."""
    who, group = os.getuid(), os.getgid()
    if who == 0:
        call("unshare", CLONE_NEWNS)
    else:
        call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{who} {who} 1"), ("gid_map", f"{group} {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    for place in {os.path.realpath(place) for place in places}:
        call("mount", b"/dev/null", place.encode(), None, MS_BIND, None)


def _refuse(without: set[Lack]) -> None:
    """Install the filter in this process. Each rule has two or four instructions and continues with the next
    rule."""
    code = [_do(LOAD, NUMBER_AT)]
    if Lack.USER_NAMESPACES in without:
        code += _fails(number("clone3"), errno.ENOSYS)
        for name in ("unshare", "clone"):
            code += [
                _do(EQUAL, number(name), otherwise=4),
                _do(LOAD, FIRST_ARGUMENT_AT),
                _do(ANY_BIT, CLONE_NEWUSER, otherwise=1),
                _do(ANSWER, FAIL | errno.EPERM),
                _do(LOAD, NUMBER_AT),
            ]
    if Lack.RIGHTS_IN_NAMESPACES in without:
        code += _fails(number("mount"), errno.EACCES)
    for lack, reason in ((Lack.LANDLOCK, errno.ENOSYS), (Lack.LANDLOCK_SWITCHED_ON, errno.EOPNOTSUPP)):
        if lack in without:
            for each in LANDLOCK_CALLS:
                code += _fails(each, reason)
    code.append(_do(ANSWER, ALLOW))
    instructions = ctypes.create_string_buffer(b"".join(code))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, argument, pointer in ((NO_NEW_PRIVILEGES, 1, None), (SET_SECCOMP, FILTER, program)):
        if libc.prctl(option, ctypes.c_ulong(argument), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)):
            raise OSError(ctypes.get_errno(), "prctl")


def _fails(call_number: int, reason: int) -> list[bytes]:
    return [_do(EQUAL, call_number, otherwise=1), _do(ANSWER, FAIL | reason)]


def _do(code: int, value: int, *, otherwise: int = 0) -> bytes:
    """Encode one instruction. `otherwise` is the number of instructions that a false condition skips."""
    return struct.pack("HBBI", code, 0, otherwise, value)
