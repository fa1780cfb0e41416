"""What is watched in a directory of git, by names: what git runs and obeys there, and links that it writes through.

Such a directory holds others, those of submodules and of other working trees, and these hold theirs.
What git keeps there as data is not looked at. Looks, and changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from parley.errors import CannotConfine
from parley.sandbox.descriptors import found, listed_in, opened_in
from parley.sandbox.kept import MOVED_ASIDE, Budget, Patience

__all__ = ["BEGUN", "Layout", "Links", "along", "look", "strays"]

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

_WRITTEN_INSIDE: Final = ("logs", "refs", "rr-cache")
"""What git writes to by names that others can choose, at any depth. It writes through links there and through
those beside, to any file of the user's."""
_WRITTEN_BY_GIT: Final = {"objects": ("info", "pack"), "lfs": ("objects",)}
"""What it writes to by names of its own, as deep as this. Through a link there it also deletes."""

_HOLDERS: Final = ("modules", "worktrees")
"""Where a directory of git has others."""
_MARKS: Final = ("HEAD", "config")
"""A directory without any of these is none of git's."""

_MOST_PARTS: Final = 256
"""Working trees and submodules of one repository."""
_MOST_AMONG_PARTS: Final = 4096
"""Files and directories among which they are looked for."""
_MOST_AMONG_LINKS: Final = 262_144
"""And those among which links are: more than there are branches anywhere."""
_MOST_LINKS: Final = 1024
"""Each takes some steps to be watched or removed."""
_OPENING: Final = 8
"""How many names are read in the time in which a directory is opened."""
_TOO_MUCH: Final = "it holds too much"

_DEEPEST: Final = 32
"""Directories within each other that are looked into: more than there are slashes in the name of a branch."""


class _Part(NamedTuple):
    """A directory of git, by its path from the outermost."""

    path: str
    names: tuple[str, ...]


class Layout(NamedTuple):
    """The directories of git that there are, by their paths from the outermost."""

    parts: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    """Those that hold parts, or could, and are none."""


class Links:
    """Looks for links that git would write through, in one directory of git after the other."""

    def __init__(self, git: int, patience: Patience) -> None:
        self._git = git
        self._budget = Budget(patience, entries=_MOST_AMONG_LINKS, content_bytes=0)
        self._left = _MOST_LINKS

    def of(self, part: str) -> Iterator[str]:
        """Those in a part, and directories that are too deep to be looked into for some.

        Raises:
            CannotConfine: there are too many, or too many files among them.
        """
        for path in self._below(part):
            self._left -= 1
            if self._left < 0:
                raise CannotConfine(_TOO_MUCH)
            yield path

    def _below(self, part: str) -> Iterator[str]:
        with ExitStack() as held_open:
            try:
                folder = _listed_inside(part, held_open, self._git)
            except OSError:
                return
            for name, is_link in sorted(_links_and_folders(folder, self._budget), key=_is_deep):
                path = os.path.join(part, name)
                if is_link:
                    if not name.startswith(MOVED_ASIDE):
                        yield path
                elif name in _WRITTEN_INSIDE:
                    yield from self._all_in(name, path, folder, level=1)
                elif name in _WRITTEN_BY_GIT:
                    yield from self._in(name, path, folder, inner=_WRITTEN_BY_GIT[name])

    def _all_in(self, name: str, path: str, outer: int, *, level: int) -> Iterator[str]:
        with _listed(name, outer, self._budget) as (folder, entries):
            for each, is_link in entries:
                inside = os.path.join(path, each)
                if is_link or level == _DEEPEST:
                    yield inside
                else:
                    yield from self._all_in(each, inside, folder, level=level + 1)

    def _in(self, name: str, path: str, outer: int, *, inner: tuple[str, ...]) -> Iterator[str]:
        with _listed(name, outer, self._budget) as (folder, entries):
            for each, is_link in entries:
                inside = os.path.join(path, each)
                if is_link:
                    yield inside
                elif each in inner:
                    yield from self._in(each, inside, folder, inner=())


def _is_deep(entry: tuple[str, bool]) -> bool:
    """To sort by: what may hold more than can be looked at comes last."""
    return entry[0] in _WRITTEN_INSIDE


def look(git: int, patience: Patience) -> tuple[Layout, list[str]]:
    """What is watched in a directory of git, and in those of its other working trees and of its submodules.

    Where a link stands on the way to something, it is the link that is watched.

    Raises:
        CannotConfine: there is too much of it.
    """
    links: dict[str, None] = {}
    names: list[str] = []
    parts, ways = _parts(git, links, Budget(patience, entries=_MOST_AMONG_PARTS, content_bytes=0))
    among = Links(git, patience)
    for part in parts:
        names += (os.path.join(part.path, name) for name in part.names)
        links |= dict.fromkeys(among.of(part.path))
    layout = Layout(tuple(part.path for part in parts), tuple(ways))
    holders = {os.path.join(part, holder) for part in layout.parts for holder in _HOLDERS}
    # What is none of git's is not to become so: then nobody would look for those that it holds.
    marks = {os.path.join(way, mark) for way in ways if way not in holders for mark in _MARKS}
    names += sorted(marks - {*layout.parts, *layout.ways})
    on_ways = {way: _link_on(way, git) for way in dict.fromkeys(map(os.path.dirname, names))}
    links |= dict.fromkeys(filter(None, on_ways.values()))
    watched = links | dict.fromkeys(name for name in names if on_ways[os.path.dirname(name)] is None)
    return layout, list(watched)


def strays(layout: Layout, git: int, patience: Patience) -> Iterator[str]:
    """Links and directories where those of submodules and of working trees are, that do not belong there.

    Raises:
        CannotConfine: there are too many files among them.
    """
    known = {*layout.parts, *layout.ways}
    budget = Budget(patience, entries=_MOST_AMONG_PARTS, content_bytes=0)
    for part in layout.parts:
        with ExitStack() as held_open:
            try:
                folder = _listed_inside(part, held_open, git)
            except OSError:
                continue
            there = {os.path.join(part, holder): found(holder, folder) for holder in _HOLDERS}
            yield from (path for path, status in there.items() if path not in known and _is_way(status))
    for way in layout.ways:
        with _listed(way, git, budget) as (_, entries):
            yield from (path for name, _ in entries if (path := os.path.join(way, name)) not in known)


def _is_way(status: os.stat_result | None) -> bool:
    return status is not None and (stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode))


@contextmanager
def _listed(way: str, outer: int, budget: Budget) -> Iterator[tuple[int, list[tuple[str, bool]]]]:
    """A directory within another, and what is in it; nothing is in one that is not there."""
    with ExitStack() as held_open:
        try:
            folder = _listed_inside(way, held_open, outer)
        except OSError:
            yield -1, []
            return
        yield folder, _links_and_folders(folder, budget)


def _links_and_folders(folder: int, budget: Budget) -> list[tuple[str, bool]]:
    """What is in a directory but for files, and whether it is a link."""
    kept: list[tuple[str, bool]] = []
    if not budget.allows(_OPENING):
        raise CannotConfine(_TOO_MUCH)
    with os.scandir(folder) as entries:
        for entry in entries:
            if not budget.allows_entry():
                raise CannotConfine(_TOO_MUCH)
            if (is_link := entry.is_symlink()) or entry.is_dir(follow_symlinks=False):
                kept.append((entry.name, is_link))
    return kept


def _parts(git: int, links: dict[str, None], budget: Budget) -> tuple[list[_Part], list[str]]:
    """The directory itself and all that it holds, and the ways to them. Links in the place of one are added to the
    others."""
    parts = [_Part("", _IN_GIT)]
    ways: list[str] = []
    waiting = _of_part("")
    while waiting:
        names, way = waiting.pop()
        with ExitStack() as held_open:
            try:
                folder = _listed_inside(way, held_open, git)
            except OSError:
                continue
            ways.append(way)
            for name, is_link in sorted(_links_and_folders(folder, budget)):
                path = os.path.join(way, name)
                if is_link:
                    links[path] = None
                elif names is _OF_EACH_TREE or _is_part(name, folder):
                    parts.append(_Part(path, names))
                    waiting += _of_part(path)
                else:
                    waiting.append((names, path))
        if len(parts) > _MOST_PARTS + 1:
            raise CannotConfine(f"it has more than {_MOST_PARTS} working trees or submodules")
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


def _listed_inside(path: str, held_open: ExitStack, git: int) -> int:
    """As `listed_in`, at any depth."""
    for each in path.split("/") if path else ["."]:
        git = listed_in(each, held_open, git)
    return git


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
