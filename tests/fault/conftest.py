from __future__ import annotations

from kit.running import executor

__all__ = ["executor"]
