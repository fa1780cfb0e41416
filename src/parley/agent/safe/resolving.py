"""Which file a program's name leads to, and whether the agent could have put it there.

Looks at the file system as it is now. Does not know what programs do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath

__all__ = ["is_out_of_reach", "lies_out_of_reach"]


def is_out_of_reach(
    program: str, *, search_path: str | None, writable: Sequence[str], elsewhere: Sequence[str] = ()
) -> bool:
    """Whether the file that would run lies below none of the `writable` directories, which are free of links.

    A name without a slash is looked for in `search_path`. The first place that has the name counts, be it
    a file that cannot run; a place that depends on the working directory makes any answer a guess. In the
    directories `elsewhere` it may be found instead: what they have of that name counts as well.
    """
    if "/" in program:
        return _is_program(program) and lies_out_of_reach(program, writable)
    places = search_path.split(os.pathsep) if search_path else []
    if not all(place.startswith("/") for place in places):
        return False
    files = (os.path.join(place, program) for place in places)
    found = next((file for file in files if os.path.lexists(file)), None)
    others = [other for place in elsewhere if os.path.lexists(other := os.path.join(place, program))]
    return (
        found is not None
        and _is_program(found)
        and all(lies_out_of_reach(file, writable) for file in (found, *others))
    )


def lies_out_of_reach(path: str, writable: Sequence[str]) -> bool:
    """Whether neither the file nor, if it is a link, the link itself lies below a writable directory."""
    folder, name = os.path.split(path)
    try:
        ways = PurePath(os.path.realpath(folder), name), PurePath(os.path.realpath(path))
    except OSError:
        return False  # somebody moves a directory on the way about just now
    return not any(way.is_relative_to(root) for way in ways for root in writable)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
