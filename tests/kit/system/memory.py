"""The current and the peak memory of a process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

__all__ = ["Peak", "memory_bytes"]


def memory_bytes(pid: int | None, field: Literal["VmRSS", "VmHWM"]) -> int:
    """Return the current (`VmRSS`) or the peak (`VmHWM`) memory of a process, by default of this one."""
    status = Path(f"/proc/{'self' if pid is None else pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


class Peak:
    """The peak growth of a process since this object was created."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = memory_bytes(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak

    @property
    def bytes(self) -> int:
        return memory_bytes(self._pid, "VmHWM") - self._before
