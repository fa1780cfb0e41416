"""The numbers of system calls, held against the kernel's own headers where this computer has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley.sandbox.syscalls import LAST_KNOWN, MACHINES

HEADERS = {
    "x86_64": ("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h"),
    "aarch64": ("asm-generic/unistd.h",),
}
"""Below `/usr/include`, and the first that is there counts."""

SINCE_THE_NUMBERS_ARE_SHARED = {
    "clone3": 435,
    "fchmodat2": 452,
    "file_setattr": 469,
    "fsconfig": 431,
    "fsmount": 432,
    "fsopen": 430,
    "fspick": 433,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "io_uring_setup": 425,
    "mount_setattr": 442,
    "move_mount": 429,
    "open_tree": 428,
    "open_tree_attr": 467,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "process_mrelease": 448,
    "quotactl_fd": 443,
    "removexattrat": 466,
    "setxattrat": 463,
}
"""From 424 on all machines count alike; some of these are younger than most headers."""

ONLY_ON_X86_64 = {"chmod", "chown", "futimesat", "ioperm", "iopl", "lchown", "mknod", "utime", "utimes"}


def header_of(machine: str) -> dict[str, int]:
    """What the header says, by name."""
    for name in HEADERS[machine]:
        path = Path("/usr/include", name)
        if path.exists():
            text = path.read_text()
            return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)$", text, re.M)}
    pytest.skip(f"no kernel headers here: none of {', '.join(HEADERS[machine])} in /usr/include")


@pytest.mark.parametrize("machine", HEADERS)
def test_every_number_is_the_one_in_the_header_of_its_machine(machine: str) -> None:
    header = header_of(machine)
    newest = max(header.values())

    ours = {name: number for name, number in MACHINES[machine].numbers.items() if number <= newest}

    assert ours == {name: header[name] for name in ours}
    assert set(MACHINES[machine].numbers) - set(ours) <= set(SINCE_THE_NUMBERS_ARE_SHARED)


@pytest.mark.parametrize("machine", HEADERS)
def test_the_younger_calls_have_the_same_number_everywhere(machine: str) -> None:
    numbers = MACHINES[machine].numbers

    assert {name: number for name, number in numbers.items() if number >= 424} == SINCE_THE_NUMBERS_ARE_SHARED
    assert len(set(numbers.values())) == len(numbers)
    assert max(numbers.values()) <= LAST_KNOWN


def test_only_the_calls_that_x86_64_alone_has_are_missing_on_aarch64() -> None:
    assert set(MACHINES["x86_64"].numbers) - set(MACHINES["aarch64"].numbers) == ONLY_ON_X86_64
    assert set(MACHINES["aarch64"].numbers) <= set(MACHINES["x86_64"].numbers)


def test_what_is_missing_on_aarch64_is_missing_in_its_header() -> None:
    assert ONLY_ON_X86_64 & set(header_of("aarch64")) == set()
