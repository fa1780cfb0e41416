"""`parley chat`: an interactive conversation on a terminal."""

from __future__ import annotations

__all__: list[str] = []
