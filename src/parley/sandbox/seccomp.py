"""Builds the system call filter for confined commands. The filter is a program that the kernel runs before each
system call.

Both Linux mechanisms use the same rules, which cover operations that neither mounts nor Landlock control. A filter
sees the number and the arguments of a system call, but not the memory that a pointer refers to.

The filter has one of four results:

- The call is made.
- The call fails with EPERM.
- The call fails with ENOSYS, so that programs use an older call whose arguments the filter can see.
- The process is killed. This happens if the call uses the calling convention of another architecture, in which the
  numbers belong to different calls.
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
"""The filter result that makes a system call fail with EPERM."""
_MISSING: Final = 0x00050026
"""The filter result that makes a system call fail with ENOSYS."""
_KILL: Final = 0x80000000
"""The filter result that kills the whole process."""

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16
"""The offset, in bytes, of the arguments in a `struct seccomp_data`. An argument has eight bytes, the lower half
first.
"""

_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
_AF_NETLINK: Final = 16
_NETLINK_ROUTE: Final = 0
_STREAM: Final = 1
_DATAGRAM: Final = 2
_SEQPACKET: Final = 5
_SOCKET_TYPE: Final = 0xF
"""The mask for the socket type in the argument `type` of `socket`. The other bits are flags."""

_CLONE_NAMESPACES: Final = 0x7E020000
"""The flags of `clone` that create a namespace."""
_UNSHARE_HARMLESS: Final = 0x00050F00
"""The flags of `unshare` that create no namespace. These flags concern memory, files, the working directory,
signals, the thread and semaphores.
"""

_FILE_TYPE: Final = 0xF000
_NO_DEVICES: Final = (0x0000, 0x8000, 0x1000, 0xC000)
"""Types of files that are not devices: a regular file (two values), a pipe and a socket."""

_SPECIAL_MODES: Final = 0o6000
"""The set-user-id and set-group-id bits of a mode."""
_CREATES: Final = 0o100 | 0o20000000
"""The flags O_CREAT and __O_TMPFILE. The kernel reads the mode of `open` if one of them is set."""

_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
"""An `ioctl` request that can insert input into a terminal, like `_TIOCSTI`."""
_IOCTL_TYPE: Final = 0xFF00
_FILE_SYSTEM: Final = (0x6600, 0x9400)
"""Types of `ioctl` requests to file systems: `f` for attributes, encryption and sealing, and 0x94 for
subvolumes.
"""
_FILE_SYSTEM_HARMLESS: Final = (0x80086601, 0xC020660B, 0x40049409, 0x4020940D)
"""Allowed `ioctl` requests to file systems. FS_IOC_GETFLAGS and FS_IOC_FIEMAP only read. FICLONE and FICLONERANGE
copy into a file that is open for writing.
"""
_FILE_SYSTEM_ELSEWHERE: Final = (0x401C5820, 0x40087602, 0x40047602, 0xC0045877, 0xC0045878, 0xC0185879)
"""Refused `ioctl` requests to file systems. The types of these requests are not in `_FILE_SYSTEM`. The requests are
FS_IOC_FSSETXATTR, FS_IOC_SETVERSION in two sizes, FIFREEZE, FITHAW and FITRIM.
"""

_PRIO_PROCESS: Final = 0
_IOPRIO_WHO_PROCESS: Final = 1
_ITSELF: Final = 0
"""The process id that means the calling process."""


# --- the parts of a rule -----------------------------------------------------------------

_EVERY_BIT: Final = 0xFFFFFFFF


class _Test(Struct, frozen=True, kw_only=True):
    """A test of one 32-bit half of an argument of a system call. The test applies `mask` to the half and compares
    the masked half with `numbers`.
    """

    at: int
    """The offset, in bytes, of the tested half of the argument in `struct seccomp_data`."""
    mask: int = _EVERY_BIT
    numbers: tuple[int, ...]
    is_one: bool = True
    """True if the test succeeds when the masked half of the argument is one of `numbers`; False if the test
    succeeds when the masked half is none of these numbers.
    """


_Rule = tuple[tuple[_Test, ...], ...]
"""The condition under which a system call is allowed: a tuple of alternatives, each of which consists of tests. If
all tests of one alternative succeed, the call is made. Otherwise, the call fails with EPERM.
"""

_NEVER: Final[_Rule] = ()


def _is(argument: int, *numbers: int, mask: int = _EVERY_BIT) -> _Test:
    """Return a test that applies `mask` to an argument of the system call, and succeeds if the result is one of
    `numbers`. `argument` is the index of the argument. The kernel reads the argument as an `int`, so its upper half
    is ignored.
    """
    return _Test(at=_ARGUMENTS_AT + 8 * argument, mask=mask, numbers=numbers)


def _is_not(argument: int, *numbers: int, mask: int = _EVERY_BIT) -> _Test:
    return _Test(at=_ARGUMENTS_AT + 8 * argument, mask=mask, numbers=numbers, is_one=False)


def _upper_is_zero(argument: int) -> _Test:
    return _Test(at=_ARGUMENTS_AT + 8 * argument + 4, numbers=(0,))


def _is_plain_mode(argument: int) -> _Test:
    """Return a test of an argument that is a file mode. The test succeeds if the mode has neither the set-user-id
    nor the set-group-id bit. `argument` is the index of the argument.
    """
    return _is(argument, 0, mask=_SPECIAL_MODES)


def _creates_plain(flags: int, mode: int) -> _Rule:
    """Return a rule that allows `open` to create only files without the set-user-id and set-group-id bits. `flags`
    and `mode` are the indexes of the arguments of `open` with these names.
    """
    return (_is(flags, 0, mask=_CREATES),), (_is_plain_mode(mode),)


def _is_null(argument: int) -> tuple[_Test, _Test]:
    """Return the tests for the two halves of an argument that is a pointer. Both tests succeed if the pointer is
    null. `argument` is the index of the argument.
    """
    return _is(argument, 0), _upper_is_zero(argument)


# --- the rules ---------------------------------------------------------------------------

_MISSING_CALLS: Final = ("clone3", "io_uring_enter", "io_uring_register", "io_uring_setup", "openat2")
"""System calls that fail with ENOSYS, because a filter cannot see their arguments. The arguments are in a structure
in memory, or in a ring buffer.
"""

_REFUSED_CALLS: Final = (
    # memory, descriptors and actions of other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease"),
    *("migrate_pages", "move_pages", "pidfd_getfd", "kcmp"),
    *("perf_event_open", "userfaultfd", "bpf", "fanotify_init"),
    # keys, which belong to the user
    *("add_key", "request_key", "keyctl"),
    # mounts and namespaces
    *("mount", "umount2", "mount_setattr", "move_mount", "open_tree", "open_tree_attr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "pivot_root", "chroot", "setns", "open_by_handle_at"),
    # administration of the computer, if the user is root
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
"""System calls that change file attributes. Landlock does not control these calls."""

_CALLS_ON_SHARED_MEMORY_AND_QUEUES: Final = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
"""System calls on shared memory, semaphores and message queues. These objects are not in the file system."""

_ALWAYS: Final[Mapping[str, _Rule]] = {
    "clone": ((_is(0, 0, mask=_CLONE_NAMESPACES),),),
    "unshare": ((_is(0, 0, mask=_EVERY_BIT & ~_UNSHARE_HARMLESS), _upper_is_zero(0)),),
    # Other users of the computer could run a set-user-id file that a command created in a writable root.
    "chmod": ((_is_plain_mode(1),),),
    "fchmod": ((_is_plain_mode(1),),),
    "fchmodat": ((_is_plain_mode(2),),),
    "fchmodat2": ((_is_plain_mode(2),),),
    "creat": ((_is_plain_mode(1),),),
    "open": _creates_plain(1, 2),
    "openat": _creates_plain(2, 3),
    "mknod": ((_is(1, *_NO_DEVICES, mask=_FILE_TYPE), _is_plain_mode(1)),),
    "mknodat": ((_is(2, *_NO_DEVICES, mask=_FILE_TYPE), _is_plain_mode(2)),),
    # Only 0, the current process, is allowed, because the filter does not know the id of the process.
    "prlimit64": ((_is(0, _ITSELF),), _is_null(2)),
    "setpriority": ((_is(0, _PRIO_PROCESS), _is(1, _ITSELF)),),
    "ioprio_set": ((_is(0, _IOPRIO_WHO_PROCESS), _is(1, _ITSELF)),),
}

_SCHEDULING: Final = ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")


def _rules(*, writable: bool, network: bool, unix_sockets: bool, namespaces: bool) -> Iterator[tuple[str, _Rule]]:
    """Yield the name and the rule of each restricted system call.

    `writable` is True if the command has a writable root. `network` and `unix_sockets` have the same meaning as in
    `SandboxPolicy`. `namespaces` is True if the command has its own namespaces for mounts, processes and memory.
    """
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
        yield "file_setattr", _NEVER  # this call has the same effect as requests that `_ioctl` does not allow
    yield "ioctl", _ioctl(namespaces=namespaces)
    yield from _sockets(writable=writable, network=network, unix_sockets=unix_sockets)


def _ioctl(*, namespaces: bool) -> _Rule:
    if namespaces:
        return ((_is_not(1, _TIOCSTI, _TIOCLINUX),),)
    # Without read-only mounts, a command could change files that it has opened for reading only.
    plain = _is_not(1, _TIOCSTI, _TIOCLINUX, *_FILE_SYSTEM_ELSEWHERE)
    of_no_file_system = _is_not(1, *_FILE_SYSTEM, mask=_IOCTL_TYPE)
    return (plain, of_no_file_system), (_is(1, *_FILE_SYSTEM_HARMLESS),)


def _sockets(*, writable: bool, network: bool, unix_sockets: bool) -> Iterator[tuple[str, _Rule]]:
    """Yield the name and the rule of each restricted system call on sockets. A filter cannot see an address, so
    most rules restrict which sockets can be created.

    `writable` is True if the command has a writable root. `network` and `unix_sockets` have the same meaning as in
    `SandboxPolicy`.

    A unix datagram socket can send each message to another address, even if it was created as one of a pair. A
    stream socket of a pair can only communicate with its peer.
    """
    stream = _is(0, _AF_UNIX), _is(1, _STREAM, _SEQPACKET, mask=_SOCKET_TYPE)
    yield "socketpair", (stream,)
    if network:
        internet = _is(0, _AF_INET, _AF_INET6), _is(1, _STREAM, _DATAGRAM, mask=_SOCKET_TYPE)
        # The C library uses this socket to list the addresses of this computer.
        routes = _is(0, _AF_NETLINK), _is(2, _NETLINK_ROUTE)
        # `connect` is needed for the network, so a command must not create Unix sockets that can connect.
        yield "socket", (internet, routes, stream) if unix_sockets else (internet, routes)
        return
    yield "socket", (stream,)
    yield "sendto", (_is_null(4),)
    if not unix_sockets:
        yield "connect", _NEVER
        if not writable:
            # Without a writable directory, a command can bind a socket only to an abstract name.
            yield "bind", _NEVER


# --- the program -------------------------------------------------------------------------


def program(machine: str, *, writable: bool, network: bool, unix_sockets: bool, namespaces: bool) -> bytes:
    """Return the system call filter for a command, as a sequence of `struct sock_filter`.

    `machine` is the machine name of `uname`. `writable` is True if the command has a writable root. `network` and
    `unix_sockets` have the same meaning as in `SandboxPolicy`. `namespaces` is True if the command has its own
    namespaces for mounts, processes and memory.

    Raises:
        SandboxUnavailable: this machine is not supported.
    """
    if machine not in MACHINES:
        raise SandboxUnavailable(f"the system calls of this machine, {machine}, are not known")
    # The filter is cached, because building one takes a tenth of the time that a command needs to start.
    return _build(machine, writable=writable, network=network, unix_sockets=unix_sockets, namespaces=namespaces)


@cache
def _build(machine: str, *, writable: bool, network: bool, unix_sockets: bool, namespaces: bool) -> bytes:
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
    # these include the calls of x32, which have a high bit set or, in old kernels, the numbers 512 to 547
    code.if_above(LAST_KNOWN, then="missing")
    for name in _MISSING_CALLS:
        code.if_equal(known.numbers[name], then="missing")
    for number, (name, rule) in rules.items():
        code.if_equal(number, then=name if rule else "refused")
    code.answer(_ALLOW)
    code.label("missing")
    code.answer(_MISSING)
    code.label("killed")
    code.answer(_KILL)
    for name, rule in rules.values():
        if rule:
            _write(code, name, rule)
    code.label("refused")
    code.answer(_REFUSE)
    return code.assembled()


def _write(code: Code, name: str, rule: _Rule) -> None:
    """Add the instructions that apply a rule to one system call."""
    code.label(name)
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
            code.label(held)
        code.answer(_ALLOW)
        code.label(failed)
    code.answer(_REFUSE)
