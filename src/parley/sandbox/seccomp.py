"""Which system calls a confined command may make, as a program that the kernel runs before each of them.

The same rules serve both ways of confining on Linux: they close what neither mounts nor Landlock
see. They know numbers and arguments alone, never what a pointer leads to; who loads the program,
and with what else beside it, is not known here.

A call gets one of four answers: it is made; it is refused (EPERM); it does not exist (ENOSYS),
so that programs take the older way that can be looked into; or, in the convention of another
machine, whose numbers mean something else, it ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from parley.errors import SandboxUnavailable
from parley.sandbox.bpf import Code
from parley.sandbox.syscalls import LAST_KNOWN, MACHINES

__all__ = ["program"]


# --- the kernel's numbers ----------------------------------------------------------------

_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050001
"""Fail with EPERM."""
_MISSING: Final = 0x00050026
"""Fail with ENOSYS."""
_KILL: Final = 0x80000000
"""End the whole process."""

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16
"""Where they stand in a `struct seccomp_data`; an argument has eight bytes, the lower half first."""

_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
_AF_NETLINK: Final = 16
_NETLINK_ROUTE: Final = 0
_STREAM: Final = 1
_DATAGRAM: Final = 2
_SEQPACKET: Final = 5
_SOCKET_TYPE: Final = 0xF
"""What is kept of a socket's type; the rest are flags."""

_CLONE_NAMESPACES: Final = 0x7E020000
"""The flags of `clone` that make a namespace."""
_UNSHARE_HARMLESS: Final = 0x00050F00
"""The flags of `unshare` that make none: memory, files, directory, signals, thread, semaphores."""

_FILE_TYPE: Final = 0xF000
_NO_DEVICES: Final = (0x0000, 0x8000, 0x1000, 0xC000)
"""Regular files, said in two ways, pipes and sockets."""

_SPECIAL_MODES: Final = 0o6000
"""The set-user-id and set-group-id bits of a mode."""
_CREATES: Final = 0o100 | 0o20000000
"""O_CREAT and __O_TMPFILE: the kernel reads the mode of `open` if one of them is set."""

_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
"""Both type into a terminal for whoever reads from it."""
_IOCTL_TYPE: Final = 0xFF00
_FILE_SYSTEM: Final = (0x6600, 0x9400)
"""The types of what file systems can do: `f`, attributes, encryption and sealing; 0x94, subvolumes."""
_FILE_SYSTEM_HARMLESS: Final = (0x80086601, 0xC020660B, 0x40049409, 0x4020940D)
"""Of these: FS_IOC_GETFLAGS and FS_IOC_FIEMAP, which read; FICLONE and FICLONERANGE, which copy into
a file that is open for writing."""
_FILE_SYSTEM_ELSEWHERE: Final = (0x401C5820, 0x40087602, 0x40047602, 0xC0045877, 0xC0045878, 0xC0185879)
"""Under other types: FS_IOC_FSSETXATTR, FS_IOC_SETVERSION in two sizes, FIFREEZE, FITHAW and FITRIM."""

_PRIO_PROCESS: Final = 0
_IOPRIO_WHO_PROCESS: Final = 1
_ITSELF: Final = 0


# --- how a rule is said ------------------------------------------------------------------

_EVERY_BIT: Final = 0xFFFFFFFF


class _Test(Struct, frozen=True, kw_only=True):
    """Half of an argument, as far as it counts, is one of some numbers, or it is none of them."""

    at: int
    mask: int = _EVERY_BIT
    numbers: tuple[int, ...]
    is_one: bool = True


_Rule = tuple[tuple[_Test, ...], ...]
"""A call is made if all tests of one of these hold, and refused otherwise."""

_NEVER: Final[_Rule] = ()


def _is(argument: int, *numbers: int, mask: int = _EVERY_BIT) -> _Test:
    """For an argument that the kernel takes as an `int`: it does not look at the upper half."""
    return _Test(at=_ARGUMENTS_AT + 8 * argument, mask=mask, numbers=numbers)


def _is_not(argument: int, *numbers: int, mask: int = _EVERY_BIT) -> _Test:
    return _Test(at=_ARGUMENTS_AT + 8 * argument, mask=mask, numbers=numbers, is_one=False)


def _upper_is_zero(argument: int) -> _Test:
    return _Test(at=_ARGUMENTS_AT + 8 * argument + 4, numbers=(0,))


def _is_plain_mode(argument: int) -> _Test:
    """The mode has neither the set-user-id nor the set-group-id bit."""
    return _is(argument, 0, mask=_SPECIAL_MODES)


def _creates_plain(flags: int, mode: int) -> _Rule:
    """For `open`: it creates no file, or one with a plain mode."""
    return (_is(flags, 0, mask=_CREATES),), (_is_plain_mode(mode),)


def _is_null(argument: int) -> tuple[_Test, _Test]:
    """For a pointer, of which both halves count."""
    return _is(argument, 0), _upper_is_zero(argument)


# --- the rules ---------------------------------------------------------------------------

_MISSING_CALLS: Final = ("clone3", "io_uring_enter", "io_uring_register", "io_uring_setup", "openat2")
"""`clone3` passes its flags and `openat2` its mode by a pointer. No rule sees a request in a ring."""

_REFUSED_CALLS: Final = (
    # other processes: their memory, their descriptors, what they do
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease"),
    *("migrate_pages", "move_pages", "pidfd_getfd", "kcmp"),
    *("perf_event_open", "userfaultfd", "bpf", "fanotify_init"),
    # keys, which belong to the user and not to a process
    *("add_key", "request_key", "keyctl"),
    # another view of the files than the one that was prepared
    *("mount", "umount2", "mount_setattr", "move_mount", "open_tree", "open_tree_attr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "pivot_root", "chroot", "setns", "open_by_handle_at"),
    # the computer itself, where the user is its administrator
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog", "vhangup", "ioperm", "iopl"),
    *("settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname"),
)

_CALLS_ON_ATTRIBUTES: Final = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat", "file_setattr"),
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
)
"""Landlock does not see them."""

_CALLS_ON_SHARED_MEMORY_AND_QUEUES: Final = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
"""They go by numbers and names of their own, with no file in between."""

_ALWAYS: Final[Mapping[str, _Rule]] = {
    "clone": ((_is(0, 0, mask=_CLONE_NAMESPACES),),),
    "unshare": ((_is(0, 0, mask=_EVERY_BIT & ~_UNSHARE_HARMLESS), _upper_is_zero(0)),),
    # Other users of the computer could run a set-user-id file that a command has left in a writable root.
    "chmod": ((_is_plain_mode(1),),),
    "fchmod": ((_is_plain_mode(1),),),
    "fchmodat": ((_is_plain_mode(2),),),
    "fchmodat2": ((_is_plain_mode(2),),),
    "creat": ((_is_plain_mode(1),),),
    "open": _creates_plain(1, 2),
    "openat": _creates_plain(2, 3),
    "mknod": ((_is(1, *_NO_DEVICES, mask=_FILE_TYPE), _is_plain_mode(1)),),
    "mknodat": ((_is(2, *_NO_DEVICES, mask=_FILE_TYPE), _is_plain_mode(2)),),
    # A process can be named by its own number as well, but nobody knows that number here.
    "prlimit64": ((_is(0, _ITSELF),), _is_null(2)),
    "setpriority": ((_is(0, _PRIO_PROCESS), _is(1, _ITSELF)),),
    "ioprio_set": ((_is(0, _IOPRIO_WHO_PROCESS), _is(1, _ITSELF)),),
}

_SCHEDULING: Final = ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")


def _rules(*, writable: bool, network: bool, unix_sockets: bool, namespaces: bool) -> Iterator[tuple[str, _Rule]]:
    """Every call that is not always made, with its rule."""
    for name in _REFUSED_CALLS:
        yield name, _NEVER
    yield from _ALWAYS.items()
    if not writable:
        for name in _CALLS_ON_ATTRIBUTES:
            yield name, _NEVER
    if not namespaces:
        for name in _CALLS_ON_SHARED_MEMORY_AND_QUEUES:
            yield name, _NEVER
        for name in _SCHEDULING:
            yield name, ((_is(0, _ITSELF),),)
        yield "file_setattr", _NEVER  # what `_ioctl` refuses, by its younger name
    yield "ioctl", _ioctl(namespaces=namespaces)
    yield from _sockets(writable=writable, network=network, unix_sockets=unix_sockets)


def _ioctl(*, namespaces: bool) -> _Rule:
    if namespaces:
        return ((_is_not(1, _TIOCSTI, _TIOCLINUX),),)
    # With no mounts of its own, a command could change files that it has only opened for reading.
    plain = _is_not(1, _TIOCSTI, _TIOCLINUX, *_FILE_SYSTEM_ELSEWHERE)
    of_no_file_system = _is_not(1, *_FILE_SYSTEM, mask=_IOCTL_TYPE)
    return (plain, of_no_file_system), (_is(1, *_FILE_SYSTEM_HARMLESS),)


def _sockets(*, writable: bool, network: bool, unix_sockets: bool) -> Iterator[tuple[str, _Rule]]:
    """No rule sees an address, so what decides is which sockets there can be.

    A datagram socket of this computer can be given another address with each message, one of a pair
    as well; a stream of a pair has its other end for good.
    """
    stream = _is(0, _AF_UNIX), _is(1, _STREAM, _SEQPACKET, mask=_SOCKET_TYPE)
    yield "socketpair", (stream,)
    if network:
        internet = _is(0, _AF_INET, _AF_INET6), _is(1, _STREAM, _DATAGRAM, mask=_SOCKET_TYPE)
        # The C library asks there which addresses this computer has.
        routes = _is(0, _AF_NETLINK), _is(2, _NETLINK_ROUTE)
        # `connect` is needed, and so there must be no socket that it could connect on this computer.
        yield "socket", (internet, routes, stream) if unix_sockets else (internet, routes)
        return
    yield "socket", (stream,)
    yield "sendto", (_is_null(4),)
    if not unix_sockets:
        yield "connect", _NEVER
        if not writable:
            # Where no file can be made, the only names left are those that all of the computer shares.
            yield "bind", _NEVER


# --- the program -------------------------------------------------------------------------


def program(machine: str, *, writable: bool, network: bool, unix_sockets: bool, namespaces: bool) -> bytes:
    """The filter for a command, as `struct sock_filter`s.

    `machine` is what `uname` says. `writable`: it may write somewhere. `network` and `unix_sockets`
    are as in `Bounds`. `namespaces`: it has mounts, processes and memory of its own, to which what it
    does is confined.

    Raises:
        SandboxUnavailable: the system calls of this machine are not known.
    """
    if machine not in MACHINES:
        raise SandboxUnavailable(f"the system calls of this machine, {machine}, are not known")
    # Every command needs one, and making it takes a tenth of the time that starting a command does.
    return _made(machine, writable=writable, network=network, unix_sockets=unix_sockets, namespaces=namespaces)


@cache
def _made(machine: str, *, writable: bool, network: bool, unix_sockets: bool, namespaces: bool) -> bytes:
    known = MACHINES[machine]
    rules = {
        known.numbers[name]: (name, rule)
        for name, rule in _rules(
            writable=writable, network=network, unix_sockets=unix_sockets, namespaces=namespaces
        )
        if name in known.numbers
    }
    code = Code()
    code.load(_ARCHITECTURE_AT)
    code.if_equal(known.architecture, otherwise="killed")
    code.load(_NUMBER_AT)
    # Also those of x32, which have a high bit set, and 512 to 547, which old kernels took for them.
    code.if_above(LAST_KNOWN, then="missing")
    for name in _MISSING_CALLS:
        code.if_equal(known.numbers[name], then="missing")
    for number, (name, rule) in rules.items():
        code.if_equal(number, then=name if rule else "refused")
    code.answer(_ALLOW)
    code.place("missing")
    code.answer(_MISSING)
    code.place("killed")
    code.answer(_KILL)
    for name, rule in rules.values():
        if rule:
            _write(code, name, rule)
    code.place("refused")
    code.answer(_REFUSE)
    return code.assembled()


def _write(code: Code, name: str, rule: _Rule) -> None:
    """The part of the program that a call with a rule comes to."""
    code.place(name)
    for count, tests in enumerate(rule, 1):
        failed = f"{name} after {count}"
        for position, test in enumerate(tests):
            held = f"{name} {count}.{position}"
            code.load(test.at)
            if test.mask != _EVERY_BIT:
                code.keep(test.mask)
            if test.is_one:
                *others, last = test.numbers
                for number in others:
                    code.if_equal(number, then=held)
                code.if_equal(last, otherwise=failed)
            else:
                for number in test.numbers:
                    code.if_equal(number, then=failed)
            code.place(held)
        code.answer(_ALLOW)
        code.place(failed)
    code.answer(_REFUSE)
