"""Comparing absolute paths as text. Reads no file."""

from __future__ import annotations

__all__ = ["is_below"]


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path is `folder` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
