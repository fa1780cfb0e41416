"""Determines how much memory this process can still allocate, and which limit on memory is the strictest."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from functools import cache
from typing import Final

from msgspec import Struct

__all__ = ["Available", "available_memory", "why_too_large"]

PEAK: Final = 7
"""The peak memory that handling a message takes, as a multiple of the size of the message."""

RESERVE_BYTES: Final = 16 * 1024 * 1024
"""The number of bytes of memory that must stay free for other work while a message is handled."""

CGROUPS: Final = "/sys/fs/cgroup"
MEGABYTE: Final = 1_000_000


class Available(Struct, frozen=True):
    bytes: int
    limit: str
    """A description of the strictest limit on memory, for error messages."""


def why_too_large(size: int) -> str | None:
    """Return the reason why there is not enough memory for a message; None if there is enough.

    `size` is the number of bytes of the message that have been read so far.
    """
    available, needed = available_memory(), (PEAK - 1) * size + RESERVE_BYTES
    if available is None or needed <= available.bytes:
        return None
    left = max(0, available.bytes) // MEGABYTE
    return (
        f"message is too large for the available memory: "
        f"it needs at least {needed // MEGABYTE} MB more, and {left} MB are left ({available.limit})"
    )


def available_memory() -> Available | None:
    """Return the available memory under the strictest limit; None if the system reports no limit."""
    return min(_limits(), key=lambda one: one.bytes, default=None)


def _limits() -> Iterator[Available]:
    used = _sizes()
    if used is not None:
        for name, number, size in (
            ("RLIMIT_AS", resource.RLIMIT_AS, used[0]),
            ("RLIMIT_DATA", resource.RLIMIT_DATA, used[1]),
        ):
            most, _ = resource.getrlimit(number)
            if most != resource.RLIM_INFINITY:
                yield Available(most - size, f"{name} is {most // MEGABYTE} MB")
    for directory in _control_groups():
        most_in_group, in_group = _number(f"{directory}/memory.max"), _number(f"{directory}/memory.current")
        if most_in_group is not None and in_group is not None:
            reclaimable = _field(f"{directory}/memory.stat", "inactive_file ") or 0
            left = most_in_group - in_group + reclaimable
            yield Available(left, f"the memory limit of the control group is {most_in_group // MEGABYTE} MB")
    if (free := _field("/proc/meminfo", "MemAvailable:")) is not None:
        yield Available(free * 1024, "the memory of the computer")


def _sizes() -> tuple[int, int] | None:
    """Return the sizes in bytes of the address space and of the data segment of this process; None if the system
    does not report them.
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = file.read().split()
        page = os.sysconf("SC_PAGE_SIZE")
        return int(pages[0]) * page, int(pages[5]) * page
    except (OSError, ValueError, IndexError):
        return None


@cache
def _control_groups() -> tuple[str, ...]:
    """Return the directories of the memory control groups that contain this process, beginning with the
    innermost.
    """
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            own = next((line[3:].strip() for line in file if line.startswith("0::")), None)
    except OSError:
        own = None
    if own is None:
        return ()
    found: list[str] = []
    path = own.strip("/")
    while True:
        found.append(os.path.join(CGROUPS, path) if path else CGROUPS)
        if not path:
            return tuple(one for one in found if os.path.exists(f"{one}/memory.max"))
        path = path.rpartition("/")[0]


def _number(path: str) -> int | None:
    """Return the number in a file. Return None if the file cannot be read, or contains a word such as `max` instead
    of a number.
    """
    try:
        with open(path, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _field(path: str, name: str) -> int | None:
    """Return the number in the field `name` of a file. Each line of the file contains a name and a number. Return
    None if the file cannot be read or has no such field.
    """
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith(name)), None)
        return None if line is None else int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return None
