"""What is watched in a directory of git, by names: what git runs and obeys there, and links that it writes through.

Such a directory holds others, those of submodules and of other working trees, and these hold theirs.
What git keeps there as data is not looked at. Looks, and changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

from parley.errors import CannotConfine
from parley.sandbox.descriptors import entered, found, opened_in, opened_inside
from parley.sandbox.kept import MOVED_ASIDE, Budget

__all__ = ["BEGUN", "along", "git_folders_among", "links_in", "names_in"]

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

_MOST_PARTS: Final = 256
"""Working trees and submodules of one repository."""
_MOST_AMONG_PARTS: Final = 4096
"""Files and directories among which they are looked for."""
_MOST_AMONG_LINKS: Final = 262_144
"""And those among which links are: more than there are branches anywhere."""
_DEEPEST: Final = 32
"""Directories within each other that are looked into: more than there are slashes in the name of a branch."""


class _Part(NamedTuple):
    """A directory of git, by its path from the outermost."""

    path: str
    names: tuple[str, ...]


def names_in(git: int) -> list[str]:
    """What is watched in a directory of git, and in those of its other working trees and of its submodules.

    Where a link stands on the way to something, it is the link that is watched.

    Raises:
        CannotConfine: there is too much of it.
    """
    links: dict[str, None] = {}
    names: list[str] = []
    for part in _parts(git, links):
        names += (os.path.join(part.path, name) for name in part.names)
        links |= dict.fromkeys(links_in(part.path, git))
    ways = {way: _link_on(way, git) for way in dict.fromkeys(map(os.path.dirname, names))}
    links |= dict.fromkeys(filter(None, ways.values()))
    return list(links | dict.fromkeys(name for name in names if ways[os.path.dirname(name)] is None))


def git_folders_among(names: Iterable[str]) -> list[str]:
    """The directories of git in which these are watched."""
    return [way for way, name in map(os.path.split, names) if name == "HEAD"]


def links_in(part: str, git: int) -> Iterator[str]:
    """The links through which git would write, and directories that are too deep to be looked into for some.

    Raises:
        CannotConfine: there are too many files among them.
    """
    budget = Budget(entries=_MOST_AMONG_LINKS, content_bytes=0)
    waiting = [(part, 0)]
    while waiting:
        folder, level = waiting.pop()
        for name, is_link in _links_and_folders(folder, git, budget):
            path = os.path.join(folder, name)
            if is_link:
                if level or not name.startswith(MOVED_ASIDE):
                    yield path
            elif level == _DEEPEST:
                yield path
            elif level or name in _WRITTEN_INSIDE:
                waiting.append((path, level + 1))


def _links_and_folders(folder: str, git: int, budget: Budget) -> Iterator[tuple[str, bool]]:
    """What is in a directory but for files, and whether it is a link; nothing if there is no such directory."""
    with ExitStack() as held_open:
        descriptor = git
        try:
            for each in filter(None, folder.split("/")):
                descriptor = entered(each, held_open, descriptor)
            listed = opened_in(".", held_open, descriptor)
        except OSError:
            return
        for entry in held_open.enter_context(os.scandir(listed)):
            if not budget.allows_entry():
                raise CannotConfine("it holds too many files")
            if (is_link := entry.is_symlink()) or entry.is_dir(follow_symlinks=False):
                yield entry.name, is_link


def _parts(git: int, links: dict[str, None]) -> list[_Part]:
    """The directory itself and all that it holds. Links in the place of one are added to the others."""
    parts = [_Part("", _IN_GIT)]
    budget = Budget(entries=_MOST_AMONG_PARTS, content_bytes=0)
    waiting = _of_part("")
    while waiting:
        names, folder = waiting.pop()
        for name, is_link in sorted(_links_and_folders(folder, git, budget)):
            path = os.path.join(folder, name)
            if is_link:
                links[path] = None
            elif names is _OF_EACH_TREE or _is_part(path, git):
                parts.append(_Part(path, names))
                waiting += _of_part(path)
            else:
                waiting.append((names, path))
        if len(parts) > _MOST_PARTS + 1:
            raise CannotConfine(f"it has more than {_MOST_PARTS} working trees or submodules")
    return parts


def _of_part(path: str) -> list[tuple[tuple[str, ...], str]]:
    """Where a directory of git has others. The name of a submodule may have slashes in it."""
    return [(_IN_GIT, os.path.join(path, "modules")), (_OF_EACH_TREE, os.path.join(path, "worktrees"))]


def _is_part(folder: str, git: int) -> bool:
    with ExitStack() as held_open:
        try:
            descriptor = opened_inside(folder, held_open, git)
        except OSError:
            return False
        return any(found(name, descriptor) for name in ("HEAD", "config"))


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
