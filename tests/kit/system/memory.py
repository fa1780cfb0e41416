"""The current and the peak memory of a process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

__all__ = ["Peak", "memory_bytes"]


def memory_bytes(pid: int | None, field: Literal["VmRSS", "VmHWM", "RssFile"]) -> int:
    """Return the current memory (`VmRSS`), the peak (`VmHWM`) or the current pages of files (`RssFile`) of a
    process. If `pid` is None, this process is meant.
    """
    status = Path(f"/proc/{'self' if pid is None else pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


class Peak:
    """The peak growth of a process since this object was created.

    Pages of files are not counted. The kernel may have removed pages of programs and libraries from memory, and the
    process may then read them again during the measurement.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = memory_bytes(pid, "VmRSS")
        self._files_before = memory_bytes(pid, "RssFile")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak

    @property
    def bytes(self) -> int:
        files = memory_bytes(self._pid, "RssFile") - self._files_before
        return memory_bytes(self._pid, "VmHWM") - self._before - max(files, 0)
