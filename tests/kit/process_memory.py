"""The memory of another process: what it holds, and the most it held."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["Peak"]


class Peak:
    """By how much a process grows at most, from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._read("VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted anew

    @property
    def bytes(self) -> int:
        return self._read("VmHWM") - self._before

    def _read(self, what: str) -> int:
        status = Path(f"/proc/{self._pid}/status").read_text()
        found = re.search(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024
