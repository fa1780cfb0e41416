"""How much is too much, for a patch and for what is shown of it."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_DIFF_BYTES", "MAX_FILES", "MAX_FILE_BYTES", "MAX_LINES", "MAX_PATCH_BYTES"]

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""A larger file is not read, and none becomes larger."""

MAX_PATCH_BYTES: Final = 64 * 1024 * 1024
"""Of a patch itself, of what is read for it, and of what it writes. Also of what a turn keeps of earlier
contents, and of what is read to show all that it changed."""

MAX_FILES: Final = 2000
"""Also of hunks, and of new directories."""

MAX_LINES: Final = 2_000_000
"""Of a file, and of the patch: a line costs some fifty bytes of memory, however short it is."""

MAX_DIFF_BYTES: Final = 1024 * 1024
"""Of the hunks in one diff of a turn: each patch shows all that the turn has changed so far, again."""
