"""What is watched in a directory of git, by names: what git runs and obeys there, and links that it writes through.

Such a directory holds others, those of submodules and of other working trees, and these hold theirs.
What git keeps there as data is not looked at. Looks, and changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

from parley.errors import SandboxUnavailable
from parley.sandbox.descriptors import found, listed_in, listed_inside, opened_in
from parley.sandbox.kept import Budget, Patience
from parley.sandbox.links import TOO_MUCH, WITHOUT_END, Links, Listing, Seen, links_and_folders

__all__ = ["BEGUN", "Layout", "along", "links", "look", "strays"]

BEGUN: Final = ("rebase-apply", "rebase-merge")
"""A rebase that was begun, with programs to run on the way."""

_OF_EACH_TREE: Final = ("HEAD", "commondir", "config.worktree", "gitdir", *BEGUN, "sequencer/opts")
"""What each working tree has of its own. The last names a program for merging."""
_IN_GIT: Final = (
    *_OF_EACH_TREE,
    "branches",
    "config",
    "hooks",
    "info",
    "objects/info/alternates",
    "objects/info/http-alternates",
    "remotes",
)

_HOLDERS: Final = ("modules", "worktrees")
"""Where a directory of git has others."""
_MARKS: Final = ("HEAD", "config")
"""A directory without any of these is none of git's."""

_MOST_PARTS: Final = 256
"""Working trees and submodules of one repository."""
_MOST_AMONG_PARTS: Final = 4096
"""Files and directories among which they are looked for."""


class Part(NamedTuple):
    """A directory of git."""

    path: str
    """From the outermost."""
    names: tuple[str, ...]
    """What is watched there."""


class Layout(NamedTuple):
    """The directories of git that there are."""

    parts: tuple[Part, ...] = ()
    ways: tuple[str, ...] = ()
    """Those that hold parts, or could, and are none, by their paths from the outermost."""

    @property
    def paths(self) -> set[str]:
        return {*(part.path for part in self.parts), *self.ways}


def look(git: int, patience: Patience, seen: Seen) -> tuple[Layout, list[str], Seen]:
    """What is watched in a directory of git, and in those of its other working trees and of its submodules.

    Where a link stands on the way to something, it is the link that is watched.

    Raises:
        SandboxUnavailable: there is too much of it.
    """
    linked: dict[str, None] = {}
    parts, ways = _parts(git, linked, Budget(patience, entries=_MOST_AMONG_PARTS, content_bytes=0))
    layout, among = Layout(tuple(parts), tuple(ways)), Links(git, patience, seen)
    names = [os.path.join(part.path, name) for part in parts for name in part.names]
    linked |= dict.fromkeys(links(layout, among))
    holders = {os.path.join(part.path, holder) for part in parts for holder in _HOLDERS}
    # What is none of git's is not to become so: then nobody would look for those that it holds.
    marks = {os.path.join(way, mark) for way in ways if way not in holders for mark in _MARKS}
    names += sorted(marks - layout.paths)
    on_ways = {way: _link_on(way, git) for way in dict.fromkeys(map(os.path.dirname, names))}
    linked |= dict.fromkeys(filter(None, on_ways.values()))
    watched = linked | dict.fromkeys(name for name in names if on_ways[os.path.dirname(name)] is None)
    return layout, list(watched), among.seen


def links(layout: Layout, among: Links) -> Iterator[str]:
    """Those in all directories of git that there are.

    Raises:
        SandboxUnavailable: there are too many, or too many files among them.
    """
    for part in layout.parts:
        yield from among.of(part.path, {*part.names, *_HOLDERS})
    if among.were_among_too_much:
        raise SandboxUnavailable(TOO_MUCH)


def strays(layout: Layout, git: int, patience: Patience) -> Iterator[str]:
    """Links and directories where those of submodules and of working trees are, that do not belong there.

    Whoever asks moves each away as it is found.

    Raises:
        SandboxUnavailable: there are too many files among them. All were found, but for those that take too long.
    """
    known, stays = layout.paths, 0
    budget = Budget(patience, entries=WITHOUT_END, content_bytes=0)
    for part in layout.parts:
        with ExitStack() as held_open:
            try:
                folder = listed_inside(part.path, held_open, git)
            except OSError:
                continue
            there = {os.path.join(part.path, holder): found(holder, folder) for holder in _HOLDERS}
            yield from (path for path, status in there.items() if path not in known and _is_way(status))
    for way in layout.ways:
        while True:
            entries, cost, is_whole = _listing(way, git, budget)
            new = [path for name, _ in entries if (path := os.path.join(way, name)) not in known]
            yield from new
            if is_whole:
                break
            if budget.is_over or not new:
                raise SandboxUnavailable(TOO_MUCH)
        stays += cost - len(new)
    if stays > _MOST_AMONG_PARTS:
        raise SandboxUnavailable(TOO_MUCH)


def _is_way(status: os.stat_result | None) -> bool:
    return status is not None and (stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode))


def _listing(way: str, git: int, budget: Budget) -> Listing:
    """Nothing is in a directory that is not there."""
    with ExitStack() as held_open:
        try:
            folder = listed_inside(way, held_open, git)
        except OSError:
            return Listing([], 0, is_whole=True)
        return links_and_folders(folder, budget)


def _parts(git: int, linked: dict[str, None], budget: Budget) -> tuple[list[Part], list[str]]:
    """The directory itself and all that it holds, and the ways to them. Links in the place of one are added to the
    others."""
    parts = [Part("", _IN_GIT)]
    ways: list[str] = []
    waiting = _of_part("")
    while waiting:
        names, way = waiting.pop()
        with ExitStack() as held_open:
            try:
                folder = listed_inside(way, held_open, git)
            except OSError:
                continue
            ways.append(way)
            entries, _, is_whole = links_and_folders(folder, budget)
            if not is_whole:
                raise SandboxUnavailable(TOO_MUCH)
            for name, is_link in sorted(entries):
                path = os.path.join(way, name)
                if is_link:
                    linked[path] = None
                elif names is _OF_EACH_TREE or _is_part(name, folder):
                    parts.append(Part(path, names))
                    waiting += _of_part(path)
                else:
                    waiting.append((names, path))
        if len(parts) > _MOST_PARTS + 1:
            raise SandboxUnavailable(f"it has more than {_MOST_PARTS} working trees or submodules")
    return parts, ways


def _of_part(path: str) -> list[tuple[tuple[str, ...], str]]:
    """Where a directory of git has others. The name of a submodule may have slashes in it."""
    return [
        (names, os.path.join(path, holder))
        for names, holder in zip((_IN_GIT, _OF_EACH_TREE), _HOLDERS, strict=True)
    ]


def _is_part(name: str, outer: int) -> bool:
    with ExitStack() as held_open:
        try:
            folder = listed_in(name, held_open, outer)
        except OSError:
            return False
        marks = (found(mark, folder) for mark in _MARKS)
        return any(mark is not None and not stat.S_ISDIR(mark.st_mode) for mark in marks)


def _link_on(way: str, git: int) -> str | None:
    """The first on a way that is no directory."""
    with ExitStack() as held_open:
        folder = git
        for each in along(way):
            name = os.path.basename(each)
            if (status := found(name, folder)) is None:
                return None
            if not stat.S_ISDIR(status.st_mode):
                return each
            folder = opened_in(name, held_open, folder)
    return None


def along(way: str) -> Iterator[str]:
    """All directories on a way, outer ones first, and the one at its end."""
    parts = way.split("/") if way else []
    return ("/".join(parts[: number + 1]) for number in range(len(parts)))
