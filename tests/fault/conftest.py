from __future__ import annotations

from kit.running import executor, marker

__all__ = ["executor", "marker"]
