"""Size limits of a patch and of its diff."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_DIFF_BYTES", "MAX_FILES", "MAX_FILE_BYTES", "MAX_LINES", "MAX_PATCH_BYTES"]

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""The largest file that is read or written."""

MAX_PATCH_BYTES: Final = 64 * 1024 * 1024
"""The limit in bytes of a patch, of everything that it reads, and of everything that it writes. Also the limit
of the earlier contents that a turn keeps, and of the contents that its diff reads.
"""

MAX_FILES: Final = 2000
"""The most files, hunks and new directories of a patch."""

MAX_LINES: Final = 2_000_000
"""The most lines of a file, and of a patch: a line takes at least fifty bytes of memory."""

MAX_DIFF_BYTES: Final = 1024 * 1024
"""The most bytes of hunks in a turn's diff. Each patch sends the whole diff of the turn so far."""
