from __future__ import annotations

from kit.system.commands import executor, marker

__all__ = ["executor", "marker"]
