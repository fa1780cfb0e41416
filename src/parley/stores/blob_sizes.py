"""The minimum size of a blob. This module is apart from `blobs.py`, so that a program starts without importing the
libraries for blobs.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MIN_BLOB_CHARACTERS"]

MIN_BLOB_CHARACTERS: Final = 4096
"""The minimum length of a run of base64 that is cut out, in characters. A body with fewer bytes is not searched for
runs.
"""
