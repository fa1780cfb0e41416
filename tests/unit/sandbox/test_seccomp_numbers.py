"""The numbers of system calls, compared with the kernel's own lists."""

from __future__ import annotations

import pytest

from kit.system.syscalls import SYSTEM_CALLS
from parley.sandbox.syscalls import LAST_KNOWN, MACHINES

NAMED = {name for machine in MACHINES.values() for name in machine.numbers}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_is_the_one_that_the_kernel_gave(machine: str) -> None:
    kernels = SYSTEM_CALLS[machine]

    assert MACHINES[machine].numbers == {name: number for name, number in kernels.items() if name in NAMED}
    assert max(kernels.values()) == LAST_KNOWN


def test_only_the_calls_that_x86_64_alone_has_are_missing_on_aarch64() -> None:
    x86_64, aarch64 = (set(MACHINES[name].numbers) for name in ("x86_64", "aarch64"))

    old = {
        *("chmod", "chown", "creat", "futimesat", "ioperm", "iopl", "lchown", "mknod", "open", "utime", "utimes"),
    }
    assert (x86_64 - aarch64, aarch64 - x86_64) == (old, set())
