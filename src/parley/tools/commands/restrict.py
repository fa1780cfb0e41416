"""Applies Landlock and seccomp to a thread and to the program that it starts, through system calls.

This module imports only the standard library and `common/landlock.py`, because the supervisors load it. The module
applies the given rights and the given seccomp program unchanged. If the kernel rejects the rights or the seccomp
program, no program is started.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import stat
import struct
import sys

from parley.common import landlock

from .messages import STEPS, EncodedRestriction

TYPE_CHECKING = False  # set as in `typing`, because importing `typing` would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final


__all__ = ["StepFailed", "prctl", "prewarm", "restricted"]

# Numbers of system calls and options, which are the same on all architectures.
CLOSE_RANGE: Final = 436
CLOSE_RANGE_CLOEXEC: Final = 4
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
SECCOMP_MODE_FILTER: Final = 2

OPENAT2: Final = 437
AT_FDCWD: Final = -100
RESOLVE_NO_SYMLINKS: Final = 4
CAP_DAC_OVERRIDE: Final = 1 << 1

OPEN_HOW: Final = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS)
"""A `struct open_how` that makes `openat2` open a path without following symbolic links."""
CAPABILITIES: Final = struct.pack("=Ii", 0x20080522, 0)
"""A `struct __user_cap_header_struct`: the newest version, for the current process."""

FIRST_FILE: Final = 3
"""The first descriptor after stdin, stdout and stderr."""
LAST_DESCRIPTOR: Final = 2**32 - 1
INSTRUCTION_BYTES: Final = 8
"""The size of one `struct sock_filter` in bytes."""
MAX_INSTRUCTIONS: Final = 4096
"""The kernel's limit on the number of instructions in a seccomp program."""

RULESET_STEP, CLOSE_STEP, PRIVILEGE_STEP, LANDLOCK_STEP, SECCOMP_STEP = range(len(STEPS))

READ_DIR: Final = 1 << 3
"""The Landlock right to list a directory. All versions of Landlock support this right."""
EXAMPLE: Final = EncodedRestriction(files=READ_DIR, network=0, scoped=0, rules=((b"/", READ_DIR),), seccomp=b"")

SKIPPED: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP)
"""Error numbers after which a rule is skipped, because its path is missing, unreachable or a symbolic link. Rules
only grant rights, so skipping a rule is safe.
"""

# There may be hundreds of rules, and declared argument types make the calls faster.
_openat2: Final = landlock.libc["syscall"]
_openat2.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long)


class _Program(ctypes.Structure):
    """A `struct sock_fprog`: a seccomp program and the number of its instructions."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class StepFailed(Exception):
    """Raised when a step of a restriction could not be applied."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"{STEPS[step]}: {os.strerror(number)}")
        self.step, self.number = step, number


def prctl(option: int, argument: int) -> None:
    """Make the system call `prctl` for the current process. Do nothing if the system does not support the
    option.
    """
    if sys.platform == "linux":
        try:
            landlock.prctl(option, argument)
        except OSError:
            pass  # some left-over processes may then be missed, but no restriction depends on this call


def restricted(restriction: EncodedRestriction, start: Callable[[], int]) -> int:
    """Call `start` in a restricted thread and return its result. The program that `start` runs is also restricted.

    The kernel restricts single threads, so the other threads of this process keep their rights. A thread is used
    because a fork takes longer than all other steps together. The thread ends a moment after the program has
    started. Until then, the program can kill or stop this process with a signal to the thread, but it cannot trace
    this process or read its memory.

    Raises:
        StepFailed: the restriction could not be applied, and nothing was started.
        OSError: `start` failed.
    """
    if sys.platform != "linux":
        raise StepFailed(RULESET_STEP, errno.ENOSYS)
    try:
        ruleset = _make_ruleset(restriction)
    except (OSError, struct.error) as error:
        raise StepFailed(RULESET_STEP, _number(error)) from error
    prctl(PR_SET_DUMPABLE, 0)  # without this call, the program could read this memory until the thread has ended

    def run() -> int:
        _apply(ruleset, restriction.seccomp)
        return start()

    try:
        return _in_thread(run)
    finally:
        os.close(ruleset)


def prewarm() -> None:
    """Create an unused ruleset and an unused thread, so that the memory pages for a restriction are copied in
    advance.

    A forked process copies each page when it first writes to the page. If this function is not called, copying
    these pages takes half of the time that is needed to restrict a command.
    """
    if sys.platform != "linux":
        return
    try:
        os.close(_make_ruleset(EXAMPLE))
        _in_thread(os.getpid)
    except OSError:
        pass  # the first restricted command reports this error


def _in_thread(run: Callable[[], int]) -> int:
    """Run a function in a new thread, wait for it, and return its result or raise its exception."""
    returned: list[int] = []
    failed: list[BaseException] = []
    over = _thread.allocate_lock()
    over.acquire()

    def call() -> None:
        try:
            returned.append(run())
        except BaseException as error:
            failed.append(error)
        finally:
            over.release()

    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:  # no more threads can be started
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    over.acquire()
    if failed:
        raise failed[0]
    return returned[0]


def _apply(ruleset: int, instructions: bytes) -> None:
    """Permanently restrict the current thread with a Landlock ruleset and a seccomp program. `ruleset` is the
    descriptor of the ruleset, and `instructions` is the seccomp program; empty if there is none.

    Raises:
        StepFailed: one of the steps failed.
    """
    step = CLOSE_STEP
    try:
        landlock.syscall(CLOSE_RANGE, FIRST_FILE, LAST_DESCRIPTOR, CLOSE_RANGE_CLOEXEC)
        step = PRIVILEGE_STEP
        landlock.prctl(landlock.PR_SET_NO_NEW_PRIVS, 1)
        _drop_capabilities()
        step = LANDLOCK_STEP
        landlock.restrict_self(ruleset)
        step = SECCOMP_STEP
        if instructions:
            landlock.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(_program(instructions)))
    except OSError as error:
        raise StepFailed(step, _number(error)) from error


def _make_ruleset(restriction: EncodedRestriction) -> int:
    ruleset = landlock.create_ruleset(restriction.files, restriction.network, restriction.scoped)
    try:
        for path, rights in restriction.rules:
            _add_rule(ruleset, path, rights)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _drop_capabilities() -> None:
    """Drop all capabilities except CAP_DAC_OVERRIDE. If the server runs as root, its commands need this capability
    to write to another user's project.

    With no_new_privs set, a process cannot regain dropped capabilities.
    """
    current = (ctypes.c_uint32 * 6)()
    landlock.check(landlock.libc.capget(CAPABILITIES, current))
    kept = current[1] & CAP_DAC_OVERRIDE
    landlock.check(landlock.libc.capset(CAPABILITIES, (ctypes.c_uint32 * 6)(kept, kept)))


def _add_rule(ruleset: int, path: bytes, rights: int) -> None:
    # The path of a rule contained no symbolic link when the rule was created. A symbolic link in the path was
    # created later, so it is not followed.
    try:
        place = _opened(path)
    except OSError as error:
        if error.errno in SKIPPED:
            return
        raise
    try:
        landlock.add_rule(ruleset, place, rights)
    finally:
        os.close(place)


def _opened(path: bytes) -> int:
    """Open a path without following symbolic links, and return its descriptor.

    Raises:
        OSError: the path does not exist, cannot be reached or contains a symbolic link.
    """
    place = _openat2(OPENAT2, AT_FDCWD, path, OPEN_HOW, len(OPEN_HOW))
    if place >= 0 or ctypes.get_errno() != errno.ENOSYS:
        return landlock.check(place)
    # This process is confined by a filter that hides `openat2`, so each directory is opened in turn.
    place = os.open("/", os.O_PATH | os.O_CLOEXEC)
    for name in filter(None, path.split(b"/")):
        try:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
        finally:
            os.close(place)
        place = inner
    if stat.S_ISLNK(os.fstat(place).st_mode):
        os.close(place)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return place


def _program(instructions: bytes) -> _Program:
    count, rest = divmod(len(instructions), INSTRUCTION_BYTES)
    if rest or count > MAX_INSTRUCTIONS:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return _Program(count, instructions)


def _number(error: Exception) -> int:
    return getattr(error, "errno", None) or errno.EINVAL
