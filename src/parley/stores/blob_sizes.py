"""The minimum size of a blob. The constant is not in `blobs.py`, because importing `blobs.py` would make the start
of a program slower.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MIN_BLOB_CHARACTERS"]

MIN_BLOB_CHARACTERS: Final = 4096
"""The minimum length of a run of base64 that is cut out, in characters. A body with fewer bytes is not searched for
runs.
"""
