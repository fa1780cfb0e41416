"""What a thread, and what it starts, gives up for good: asked of the Linux kernel, for which Python has no words.

Needs the standard library alone. Which rights and which program make a sandbox is not known here: they
are taken as they come, and what the kernel does not take is an error, behind which nothing is started.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import stat
import struct
import sys

from .messages import STEPS, Restriction

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final


__all__ = ["StepFailed", "prctl", "rehearse", "restricted"]

# Numbers of the kernel, the same on all machines.
CLOSE_RANGE: Final = 436
CLOSE_RANGE_CLOEXEC: Final = 4
LANDLOCK_CREATE_RULESET: Final = 444
LANDLOCK_ADD_RULE: Final = 445
LANDLOCK_RULE_PATH_BENEATH: Final = 1
LANDLOCK_RESTRICT_SELF: Final = 446
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
SECCOMP_MODE_FILTER: Final = 2
PR_SET_NO_NEW_PRIVS: Final = 38

OPENAT2: Final = 437
AT_FDCWD: Final = -100
RESOLVE_NO_SYMLINKS: Final = 4
CAP_DAC_OVERRIDE: Final = 1 << 1

OPEN_HOW: Final = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS)
"""`struct open_how`."""
CAPABILITIES: Final = struct.pack("=Ii", 0x20080522, 0)
"""`struct __user_cap_header_struct`: the newest version, of this process."""

FIRST_FILE: Final = 3
"""The descriptor behind the standard ones."""
LAST_DESCRIPTOR: Final = 2**32 - 1
RULESET: Final = struct.Struct("=QQQ")
"""`struct landlock_ruleset_attr`. A kernel that knows less of it takes the rest only if that is zero."""
PATH_BENEATH: Final = struct.Struct("=Qi")
"""`struct landlock_path_beneath_attr`."""
OF_DIRECTORIES: Final = sum(1 << bit for bit in range(3, 14))
"""The rights that a rule for a file cannot grant, from READ_DIR to REFER."""
INSTRUCTION_BYTES: Final = 8
"""Of one `struct sock_filter`."""
MOST_INSTRUCTIONS: Final = 4096
"""The kernel takes no more of them."""

MAKING_RULES, CLOSING, GIVING_UP, LANDLOCK, SECCOMP = range(len(STEPS))

LIST_FOLDERS: Final = 1 << 3
"""READ_DIR, which all versions of Landlock know."""
REHEARSED: Final = Restriction(files=LIST_FOLDERS, network=0, scoped=0, rules=((b"/", LIST_FOLDERS),), seccomp=b"")

LEFT_OUT: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP)
"""What may become of the path of a rule: it is gone, out of reach, or a link. A rule does nothing but grant."""

_library: Final = ctypes.CDLL(None, use_errno=True)

# There may be hundreds of rules: their calls know beforehand what they are given.
_openat2: Final = _library["syscall"]
_openat2.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long)
_add: Final = _library["syscall"]
_add.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long)


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class StepFailed(Exception):
    """A restriction could not be laid on."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"{STEPS[step]}: {os.strerror(number)}")
        self.step, self.number = step, number


def prctl(option: int, argument: int) -> None:
    """Set something of this process, where the system knows such a thing."""
    if sys.platform == "linux":
        try:
            _prctl(option, argument)
        except OSError:
            pass  # it does not: what is started is watched over less well, and not restricted less


def restricted(restriction: Restriction, start: Callable[[], int]) -> int:
    """What `start` returns, which is called in a thread that has given all of it up. So has what it starts.

    The kernel takes rights from threads, not from processes: the others of this one keep theirs. That
    saves a fork, which takes longer than all of the rest. Until the thread has ended, a moment later, what
    was started can signal it, and so end us; it cannot look into us or change us.

    Raises:
        StepFailed: the restriction could not be laid on; nothing was started.
        OSError: it was, and `start` failed.
    """
    if sys.platform != "linux":
        raise StepFailed(MAKING_RULES, errno.ENOSYS)
    try:
        ruleset = _make_ruleset(restriction)
    except (OSError, struct.error) as error:
        raise StepFailed(MAKING_RULES, _number(error)) from error
    prctl(PR_SET_DUMPABLE, 0)  # or the memory of this process would be open to it for that moment

    def run() -> int:
        _lay_on(ruleset, restriction.seccomp)
        return start()

    try:
        return _in_thread(run)
    finally:
        os.close(ruleset)


def rehearse() -> None:
    """Go through it, but for what cannot be taken back.

    A process that was just forked copies each page of its memory when it first writes to it, which takes half of
    the time in which a restriction is laid on. Nobody need wait for that.
    """
    if sys.platform != "linux":
        return
    try:
        os.close(_make_ruleset(REHEARSED))
        _in_thread(os.getpid)
    except OSError:
        pass  # whoever is restricted is told


def _in_thread(run: Callable[[], int]) -> int:
    """What it returns or raises in a thread of its own, when that is over."""
    returned: list[int] = []
    failed: list[BaseException] = []
    over = _thread.allocate_lock()
    over.acquire()

    def to_its_end() -> None:
        try:
            returned.append(run())
        except BaseException as error:
            failed.append(error)
        finally:
            over.release()

    try:
        _thread.start_new_thread(to_its_end, ())
    except RuntimeError:  # there can be no more threads
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    over.acquire()
    if failed:
        raise failed[0]
    return returned[0]


def _lay_on(ruleset: int, instructions: bytes) -> None:
    """Restrict this thread. There is no way back."""
    step = CLOSING
    try:
        _call(CLOSE_RANGE, FIRST_FILE, LAST_DESCRIPTOR, CLOSE_RANGE_CLOEXEC)
        step = GIVING_UP
        _prctl(PR_SET_NO_NEW_PRIVS, 1)
        _give_up_capabilities()
        step = LANDLOCK
        _call(LANDLOCK_RESTRICT_SELF, ruleset, 0)
        step = SECCOMP
        if instructions:
            _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(_program(instructions)))
    except OSError as error:
        raise StepFailed(step, _number(error)) from error


def _make_ruleset(restriction: Restriction) -> int:
    handled = RULESET.pack(restriction.files, restriction.network, restriction.scoped)
    ruleset = _call(LANDLOCK_CREATE_RULESET, handled, len(handled), 0)
    try:
        for path, rights in restriction.rules:
            _add_rule(ruleset, path, rights)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _give_up_capabilities() -> None:
    """Of what a superuser may do, keep only that files of others are his: without it a server that runs as root
    could not write to a project of somebody else. The kernel gives none of it back to who gains no privileges."""
    has = (ctypes.c_uint32 * 6)()
    _answer(_library.capget(CAPABILITIES, has))
    kept = has[1] & CAP_DAC_OVERRIDE
    _answer(_library.capset(CAPABILITIES, (ctypes.c_uint32 * 6)(kept, kept)))


def _add_rule(ruleset: int, path: bytes, rights: int) -> None:
    # A path of a rule has no link in it. One that is there by now was put there by somebody else.
    try:
        place = _opened(path)
    except OSError as error:
        if error.errno in LEFT_OUT:
            return
        raise
    try:
        if rights & OF_DIRECTORIES and not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= ~OF_DIRECTORIES
        if rights:
            beneath = PATH_BENEATH.pack(rights, place)
            _answer(_add(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, beneath, 0))
    finally:
        os.close(place)


def _opened(path: bytes) -> int:
    """Open a path without following any link."""
    place = _openat2(OPENAT2, AT_FDCWD, path, OPEN_HOW, len(OPEN_HOW))
    if place >= 0 or ctypes.get_errno() != errno.ENOSYS:
        return _answer(place)
    # This process is itself confined by a filter that hides `openat2`: open one directory after the other.
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
    if rest or count > MOST_INSTRUCTIONS:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return _Program(count, instructions)


def _call(number: int, *arguments: int | bytes) -> int:
    """What the kernel answers, which has no other way to be asked for these."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _answer(_library.syscall(ctypes.c_long(number), *words))


def _prctl(option: int, argument: int, pointer: object = None) -> None:
    nothing = ctypes.c_ulong(0)
    _answer(_library.prctl(option, ctypes.c_ulong(argument), pointer, nothing, nothing))


def _answer(given: int) -> int:
    if given < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return given


def _number(error: Exception) -> int:
    return getattr(error, "errno", None) or errno.EINVAL
