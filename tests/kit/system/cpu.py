"""The CPU time of another process, which is the same on a busy machine and on an idle one."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cpu_seconds", "precise_cpu_seconds"]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time in seconds that a process has used so far, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def precise_cpu_seconds(pid: int) -> float:
    """Return the CPU time as `cpu_seconds` does, but only of living threads, and with a higher resolution."""
    return sum(map(_nanoseconds, Path(f"/proc/{pid}/task").glob("*/schedstat"))) / 1e9


def _nanoseconds(schedstat: Path) -> int:
    """Return the CPU time of a thread; 0 if it has ended since it was listed."""
    try:
        return int(schedstat.read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0
