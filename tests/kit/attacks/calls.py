"""System calls by number, for calls that the standard library does not have, on x86-64 and aarch64."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

__all__ = ["CALLS", "call", "number"]

X86_ONLY: Final = 1 << 16
"""A number for a system call that this machine does not have. The kernel answers that the call does not exist."""

CALLS: Final[dict[str, tuple[int, int]]] = {
    "open": (2, X86_ONLY),
    "creat": (85, X86_ONLY),
    "chmod": (90, X86_ONLY),
    "mknod": (133, X86_ONLY),
    "openat": (257, 56),
    "fchmodat": (268, 53),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "semop": (65, 193),
    "msgsnd": (69, 189),
    "shmctl": (31, 195),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "ptrace": (101, 117),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "sethostname": (170, 161),
    "sched_setaffinity": (203, 122),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ioprio_set": (251, 30),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "prlimit64": (302, 261),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "sched_setattr": (314, 274),
    "renameat2": (316, 276),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "clone": (56, 220),
    "linkat": (265, 37),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "process_mrelease": (448, 448),
    "fchmodat2": (452, 452),
    "setxattrat": (463, 463),
    "file_getattr": (468, 468),
    "file_setattr": (469, 469),
}

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def number(name: str) -> int:
    return CALLS[name][os.uname().machine == "aarch64"]


def call(name: str, *arguments: Any) -> int:
    """Make the call. Integers are passed with 64 bits.

    Raises:
        OSError: the system refused.
    """
    result: int = _libc.syscall(
        ctypes.c_long(number(name)),
        *(ctypes.c_long(given) if isinstance(given, int) else given for given in arguments),
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result
