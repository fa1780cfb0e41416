"""Size limits for a patch and for its diff."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_DIFF_BYTES", "MAX_FILES", "MAX_FILE_BYTES", "MAX_LINES", "MAX_PATCH_BYTES"]

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""The maximum size, in bytes, of a file that is read or written."""

MAX_PATCH_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of a patch, in bytes. The same limit applies to four total sizes: the files that a patch reads,
the files that a patch writes, the old file contents that are kept for the diff of a turn, and the files that are
read for this diff.
"""

MAX_FILES: Final = 2000
"""The maximum number of files that a patch names. The same limit applies to the hunks of a patch, and to the
directories that a patch creates.
"""

MAX_LINES: Final = 2_000_000
"""The maximum number of lines in a file or in a patch. Each line takes at least fifty bytes of memory."""

MAX_DIFF_BYTES: Final = 1024 * 1024
"""The maximum total size, in bytes, of the hunks in a turn's diff. The size is limited because the diff of all
changes in the turn is sent after each patch.
"""
