"""Compares absolute paths as text, without reading the file system."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["is_below", "is_below_any"]


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path is `folder` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_below_any(path: str, folders: Iterable[str]) -> bool:
    """Return whether an absolute path is one of the `folders` or lies in one of them."""
    return any(is_below(path, folder) for folder in folders)
