"""Determines the working directory of this process, which may have been removed."""

from __future__ import annotations

import os

from parley.errors import BadSetting

__all__ = ["absolute_path", "working_directory"]


def working_directory() -> str:
    """Return the working directory of this process.

    Raises:
        BadSetting: the directory was removed, or cannot be read.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise BadSetting(f"the working directory cannot be used: {error.strerror}") from None


def absolute_path(path: str) -> str:
    """Return the absolute form of a path that may be relative to the working directory.

    Raises:
        BadSetting: the path is relative, and the working directory was removed or cannot be read.
    """
    return os.path.normpath(path if os.path.isabs(path) else os.path.join(working_directory(), path))
