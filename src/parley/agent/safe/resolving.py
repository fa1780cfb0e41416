"""Finds the file of a program, and checks whether the agent could have written that file. The module examines the
current state of the file system.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath

__all__ = ["is_outside", "is_program_outside"]


def is_program_outside(
    program: str, *, search_path: str | None, writable: Sequence[str], elsewhere: Sequence[str] = ()
) -> bool:
    """Return whether a program exists and its file is in none of the `writable` directories.

    The paths in `writable` must not contain symbolic links. A name without a slash is looked up in `search_path`.
    Only the first file with this name is considered; if this file is not executable, the result is False. The
    result is also False if the search path contains a relative directory. `elsewhere` lists directories in which a
    login shell may find the program instead. If such a directory contains a file with the name of the program, that
    file must not be in a writable directory either.
    """
    if "/" in program:
        return _is_program(program) and is_outside(program, writable)
    places = search_path.split(os.pathsep) if search_path else []
    if not all(place.startswith("/") for place in places):
        return False
    files = (os.path.join(place, program) for place in places)
    found = next((file for file in files if os.path.lexists(file)), None)
    others = [other for place in elsewhere if os.path.lexists(other := os.path.join(place, program))]
    return found is not None and _is_program(found) and all(is_outside(file, writable) for file in (found, *others))


def is_outside(path: str, writable: Sequence[str]) -> bool:
    """Return whether a file is outside of all writable directories. For a symbolic link, both the symbolic link and
    its target must be outside.
    """
    folder, name = os.path.split(path)
    try:
        paths = PurePath(os.path.realpath(folder), name), PurePath(os.path.realpath(path))
    except OSError:
        return False  # a directory of the path is being moved
    return not any(one.is_relative_to(root) for one in paths for root in writable)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
