"""The decision of the seccomp programs about every system call, compared with the same rules in plain Python."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.system.bpf import ALLOW, KILL, LONGEST, Call, Filter, fails_with
from parley.errors import SandboxUnavailable
from parley.sandbox.seccomp import program
from parley.sandbox.syscalls import MACHINES

EPERM = fails_with(errno.EPERM)
ENOSYS = fails_with(errno.ENOSYS)

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OTHER_ARCHITECTURES = (0x40000003, 0x40000028, 0xC0000016, 0x3E, 0x8000003E, 0x4000003E, 0, 0xFFFFFFFF)
"""i386, 32-bit ARM, other architectures, and our architectures with another word size or byte order."""


class Mode(NamedTuple):
    writable: bool
    network: bool
    unix_sockets: bool
    namespaces: bool


MODES = [Mode(*chosen) for chosen in itertools.product((False, True), repeat=4)]


def filter_for(machine: str, mode: Mode) -> Filter:
    return Filter(program(machine, **mode._asdict()))


FILTERS = {(machine, mode): filter_for(machine, mode) for machine in MACHINES for mode in MODES}


# --- the rules in plain Python -------------------------------------------------------------------

MISSING = "io_uring_setup io_uring_enter io_uring_register clone3 openat2"

REFUSED = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp process_madvise process_mrelease
    migrate_pages move_pages perf_event_open userfaultfd bpf fanotify_init add_key request_key keyctl
    mount umount2 mount_setattr move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick
    pivot_root chroot setns open_by_handle_at
    init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct
    quotactl quotactl_fd syslog vhangup iopl ioperm
    settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname
"""

REFUSED_UNLESS_WRITABLE = """
    chown fchown lchown fchownat utime utimes futimesat utimensat
    setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
"""

REFUSED_WITHOUT_NAMESPACES = """
    shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
STREAM, DGRAM, RAW, SEQPACKET = 1, 2, 3, 5


words_of = cache(str.split)


@cache
def names_of(machine: str) -> dict[int, str]:
    return {number: name for name, number in MACHINES[machine].numbers.items()}


def may_make_socket(mode: Mode, family: int, kind: int, protocol: int) -> bool:
    if family == UNIX:
        return kind in (STREAM, SEQPACKET) and (mode.unix_sockets or not mode.network)
    if not mode.network:
        return False
    if family == NETLINK:
        return protocol == 0
    return family in (INET, INET6) and kind in (STREAM, DGRAM)


def may_control(mode: Mode, command: int) -> bool:
    if command in (0x5412, 0x541C):  # TIOCSTI, TIOCLINUX
        return False
    if mode.namespaces:
        return True
    if command in (0x401C5820, 0x40087602, 0x40047602):  # FS_IOC_FSSETXATTR, FS_IOC_SETVERSION
        return False
    if command in (0xC0045877, 0xC0045878, 0xC0185879):  # FIFREEZE, FITHAW, FITRIM
        return False
    reads_or_clones = (0x80086601, 0xC020660B, 0x40049409, 0x4020940D)
    return command >> 8 & 0xFF not in (ord("f"), 0x94) or command in reads_or_clones


def creates(flags: int) -> bool:
    """Return whether `open` with these flags creates a file and uses its mode argument.

    The flags contain O_CREAT, or the bit that O_TMPFILE adds to O_DIRECTORY.
    """
    return bool(flags & 0o100 or flags & 0o20000000)


def is_made(name: str, mode: Mode, *arguments: int) -> bool:
    """Return whether the rules allow an existing call."""
    first, second, third, fourth = (argument & 0xFFFFFFFF for argument in arguments[:4])
    if name in words_of(REFUSED):
        return False
    if name in words_of(REFUSED_UNLESS_WRITABLE):
        return mode.writable
    if name in words_of(REFUSED_WITHOUT_NAMESPACES):
        return mode.namespaces
    match name:
        case "clone":
            return first & 0x7E02_0000 == 0
        case "unshare":
            return arguments[0] & ~(0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000) == 0
        case "chmod" | "fchmod":
            return mode.writable and not second & 0o6000
        case "fchmodat" | "fchmodat2":
            return mode.writable and not third & 0o6000
        case "creat":
            return not second & 0o6000
        case "open":
            return not creates(second) or not third & 0o6000
        case "openat":
            return not creates(third) or not fourth & 0o6000
        case "mknod":
            return second & 0xF000 in (0, 0x8000, 0x1000, 0xC000) and not second & 0o6000
        case "mknodat":
            return third & 0xF000 in (0, 0x8000, 0x1000, 0xC000) and not third & 0o6000
        case "prlimit64":
            return first == 0 or arguments[2] == 0
        case "setpriority":
            return (first, second) == (0, 0)
        case "ioprio_set":
            return (first, second) == (1, 0)
        case "sched_setaffinity" | "sched_setattr" | "sched_setparam" | "sched_setscheduler":
            return mode.namespaces or first == 0
        case "ioctl":
            return may_control(mode, second)
        case "socket":
            return may_make_socket(mode, first, second & 0xF, third)
        case "socketpair":
            return first == UNIX and second & 0xF in (STREAM, SEQPACKET)
        case "file_setattr":
            return mode.writable and mode.namespaces
        case "connect":
            return mode.network or mode.unix_sockets
        case "bind":
            return mode.network or mode.unix_sockets or mode.writable
        case "sendto":
            return mode.network or arguments[4] == 0
        case _:
            return True


def expected(machine: str, mode: Mode, call: Call) -> int:
    if call.architecture != ARCHITECTURES[machine]:
        return KILL
    if not 0 <= call.number <= 469:
        return ENOSYS
    name = names_of(machine).get(call.number, "")
    if name in words_of(MISSING):
        return ENOSYS
    arguments = (*call.arguments, *(0,) * (6 - len(call.arguments)))
    return ALLOW if is_made(name, mode, *arguments) else EPERM


# --- comparison with the programs ----------------------------------------------------------------

EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES)

ALL_ONES = 2**64 - 1
UPPER = 0xABCD_EF01 << 32
"""An upper half that the kernel ignores in an argument of the type `int`."""


def with_upper_halves(*values: int) -> list[int]:
    """Return each value, and the same with a different upper half."""
    return [*values, *(value | UPPER for value in values), 1 << 32, ALL_ONES]


SOCKET_TYPES = with_upper_halves(*range(8), 15, 16, 17, 0x80001, 0x80801, 0x80802, 0x80803, 0x80005, 0x80000)
FAMILIES = with_upper_halves(0, 1, 2, 3, 10, 15, 16, 17, 38, 40, 0x10001, 0x7FFFFFFF)
FLAGS = with_upper_halves(0, *(1 << bit for bit in range(32)), 0x11, 0x3D0F00, 0x1200011)
PROCESSES = with_upper_halves(0, 1, 2, 4242, 0x7FFFFFFF, 0xFFFFFFFF)
PERMISSIONS = with_upper_halves(
    *(0, 0o644, 0o777, 0o1777, 0o2000, 0o2755, 0o4000, 0o4755, 0o6000, 0o6755, 0o7777),
    *(0x1_0000, 0x1_0000 | 0o4755, 0xFFFF_F000, 0xFFFF_F3FF, 0xFFFF_F000 | 0o2000),
)
"""Modes with upper bits that the kernel ignores, and with all combinations of the three special bits."""
OPENING = with_upper_halves(
    *(0, 0o1, 0o2, 0o100, 0o101, 0o301, 0o1101, 0o2000000, 0o100000, 0o200000, 0o20000000, 0o20200002),
    *(0o4000100, 0x7FFF_FFFF, 0xFFFF_FFFF & ~0o20000100, 0xFFFF_FFFF & ~0o100),
)
"""Flags of `open`: reading, writing, O_CREAT with and without others, O_DIRECTORY, __O_TMPFILE, O_TMPFILE."""
MODES_OF_FILES = with_upper_halves(
    *(kind << 12 | mode for kind in range(16) for mode in (0o644, 0o1644, 0o2644, 0o4644, 0o6644)),
    *(0o644, 0x1_2000, 0x1_0000),
)
POINTERS = [0, 1, 0xFFFFFFFF, 1 << 32, UPPER, 0x7FFF_1234_5678, ALL_ONES]
COMMANDS = with_upper_halves(
    *(0x5401, 0x5412, 0x541C, 0x5413, 0x15412, 0x80045430, 0x12),
    *(0x80086601, 0x40086602, 0x40046602, 0xC020660B, 0x40806685, 0x800C6613, 0x660B, 0x6601),
    *(0x40049409, 0x4020940D, 0xC0189436, 0x5000940E, 0x9409, 0x50009417),
    *(0x401C5820, 0x801C581F, 0x40087602, 0x40047602, 0x80087601, 0xC0045877, 0xC0045878, 0xC0185879),
)

EDGES: dict[str, list[list[int]]] = {
    "clone": [FLAGS],
    "unshare": [FLAGS],
    "chmod": [[0], PERMISSIONS],
    "fchmod": [[0], PERMISSIONS],
    "fchmodat": [[0], [0], PERMISSIONS],
    "fchmodat2": [[0], [0], PERMISSIONS, [0, 0o4000]],
    "creat": [[0], PERMISSIONS],
    "open": [[0], OPENING, PERMISSIONS],
    "openat": [[0], [0], OPENING, PERMISSIONS],
    "mknod": [[0], MODES_OF_FILES],
    "mknodat": [[0], [0], MODES_OF_FILES],
    "prlimit64": [PROCESSES, [7], POINTERS],
    "setpriority": [with_upper_halves(0, 1, 2, 3), PROCESSES],
    "ioprio_set": [with_upper_halves(0, 1, 2, 3), PROCESSES],
    "sched_setaffinity": [PROCESSES],
    "sched_setattr": [PROCESSES],
    "sched_setparam": [PROCESSES],
    "sched_setscheduler": [PROCESSES],
    "ioctl": [[0, 3], COMMANDS],
    "socketpair": [FAMILIES, SOCKET_TYPES],
    "connect": [[3]],
    "bind": [[3]],
    "sendto": [[3], [0x1000], [1], [0], POINTERS],
}
"""For each system call whose arguments matter, the values of each argument. All combinations are tried."""

SOCKETS = list(
    itertools.chain(
        itertools.product(FAMILIES, SOCKET_TYPES, [0]),
        itertools.product((NETLINK, NETLINK | UPPER, INET), (RAW, DGRAM), with_upper_halves(0, 1, 4, 15, 16)),
    )
)


def edges(machine: str) -> Iterator[Call]:
    architecture = ARCHITECTURES[machine]
    numbers = MACHINES[machine].numbers
    for name, values in EDGES.items():
        if name in numbers:
            for arguments in itertools.product(*values):
                yield Call(architecture, numbers[name], arguments)
    for arguments in SOCKETS:
        yield Call(architecture, numbers["socket"], arguments)


def deviations(machine: str, mode: Mode, calls: Iterator[Call]) -> list[tuple[Call, int, int]]:
    """Return where the program and the rules differ: the call, and both decisions."""
    found = FILTERS[machine, mode]
    answers = ((call, found.answer(call), expected(machine, mode, call)) for call in calls)
    return [(call, said, right) for call, said, right in answers if said != right]


@EVERY_MACHINE
def test_every_number_gets_the_answer_of_the_rules_in_every_mode(machine: str) -> None:
    random_arguments = random.Random(4)
    calls = [
        Call(ARCHITECTURES[machine], number, arguments)
        for number in range(-2, 601)
        for arguments in (
            (0,) * 6,
            (ALL_ONES,) * 6,
            tuple(random_arguments.getrandbits(64) for _ in range(6)),
        )
    ]

    assert [deviations(machine, mode, iter(calls)) for mode in MODES] == [[]] * len(MODES)


@EVERY_MACHINE
def test_every_edge_of_an_argument_gets_the_answer_of_the_rules_in_every_mode(machine: str) -> None:
    calls = list(edges(machine))

    assert [deviations(machine, mode, iter(calls)) for mode in MODES] == [[]] * len(MODES)


@given(
    machine=st.sampled_from(sorted(MACHINES)),
    mode=st.sampled_from(MODES),
    number=st.integers(-600, 600) | st.integers(-(2**31), 2**31 - 1),
    arguments=st.lists(st.integers(0, 40) | st.integers(0, ALL_ONES), min_size=6, max_size=6),
)
def test_any_call_gets_the_answer_of_the_rules(machine: str, mode: Mode, number: int, arguments: list[int]) -> None:
    assert deviations(machine, mode, iter([Call(ARCHITECTURES[machine], number, arguments)])) == []


@EVERY_MACHINE
def test_numbers_of_x32_and_beyond_the_last_that_is_known_do_not_exist(machine: str) -> None:
    architecture = ARCHITECTURES[machine]
    x32 = [0x40000000 | number for number in (*range(600), 0x3FFFFFFF)]
    beyond = [470, 471, 512, 520, 521, 547, 1 << 16, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]

    answers = {
        FILTERS[machine, mode].answer(Call(architecture, number)) for mode in MODES for number in (*x32, *beyond)
    }

    assert answers == {ENOSYS}


@EVERY_MACHINE
def test_calls_in_the_convention_of_another_machine_end_the_process(machine: str) -> None:
    others = {*OTHER_ARCHITECTURES, *ARCHITECTURES.values()} - {ARCHITECTURES[machine]}
    numbers = (0, 1, 11, 41, 102, 198, 425, 0x40000001)

    answers = {
        FILTERS[machine, mode].answer(Call(other, number))
        for mode in MODES
        for other in others
        for number in numbers
    }

    assert answers == {KILL}


@EVERY_MACHINE
def test_a_confined_agent_may_confine_what_it_starts_further(machine: str) -> None:
    seccomp = {"x86_64": 317, "aarch64": 277}[machine]
    landlock = (444, 445, 446)

    answers = {
        FILTERS[machine, mode].answer(Call(ARCHITECTURES[machine], number))
        for mode in MODES
        for number in (seccomp, *landlock)
    }

    assert answers == {ALLOW}


def test_every_program_is_short_enough_for_the_kernel_to_take() -> None:
    assert {case for case, found in FILTERS.items() if len(found.instructions) >= LONGEST // 8} == set()


@pytest.mark.parametrize("machine", ["", "i686", "armv7l", "arm64", "aarch64_be", "riscv64", "X86_64", "ppc64le"])
def test_a_machine_that_is_not_known_gets_no_program(machine: str) -> None:
    with pytest.raises(SandboxUnavailable) as caught:
        program(machine, writable=False, network=False, unix_sockets=False, namespaces=False)

    assert str(caught.value) == f"the system calls of this machine, {machine}, are not known"
