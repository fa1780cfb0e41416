from __future__ import annotations

from kit.system.commands import executor

__all__ = ["executor"]
