"""Links in a directory of git, through which it would write to any file of the user's, or delete there.

It writes by names of its own, and by those that others can choose, to almost all that is there: so links are
looked for everywhere but among objects, which it never writes in place. Looks, and changes nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Final, NamedTuple

from parley.errors import CannotConfine
from parley.sandbox.descriptors import found, listed_inside
from parley.sandbox.kept import MOVED_ASIDE, SETTLED_NANOSECONDS, Budget, Patience

__all__ = ["TOO_MUCH", "Links", "Seen", "links_and_folders"]

TOO_MUCH: Final = "it holds too much"

_OBJECTS: Final = re.compile(r"objects/[0-9a-f]{2}")
"""What they are kept in, by the first digits of their names: new ones are renamed into place."""

_MOST_AMONG_LINKS: Final = 262_144
"""Files and directories among which they are: more than there are branches anywhere."""
_MOST_LINKS: Final = 1024
"""Each takes some steps to be watched or removed."""
_OPENING: Final = 4
"""How many names are read in the time in which a directory is opened."""
_DEEPEST: Final = 32
"""Directories within each other that are looked into: more than there are slashes in the name of a branch."""


class _Listed(NamedTuple):
    """A directory, as it was listed."""

    identity: tuple[int, ...]
    """What the system changes with every name that is made or removed in it, whatever the command does about it:
    of its times the last cannot be set."""
    links: tuple[str, ...]
    folders: tuple[str, ...]
    """Those in which there may be more."""


Seen = Mapping[str, _Listed]
"""Directories that need not be listed again while they are the same, by their paths from the outermost."""


class Links:
    """Looks for links in one directory of git after the other."""

    def __init__(self, git: int, patience: Patience, seen: Seen) -> None:
        self._git = git
        self._known = seen
        self.seen: dict[str, _Listed] = {}
        self._budget = Budget(patience, entries=_MOST_AMONG_LINKS, content_bytes=0)
        self._left = _MOST_LINKS

    def of(self, part: str, without: Collection[str]) -> Iterator[str]:
        """Those in a part, and directories that are too deep to be looked into for some. Of what lies in it
        directly, some is left out.

        Raises:
            CannotConfine: there are too many, or too many files among them.
        """
        waiting = deque([""])
        while waiting:
            inside = waiting.popleft()
            path = os.path.join(part, inside) if inside else part
            if inside.count("/") >= _DEEPEST:
                yield self._counted(path)
                continue
            listed = self._listed(path, inside, without)
            for name in listed.links if listed else ():
                yield self._counted(os.path.join(path, name))
            waiting.extend(os.path.join(inside, name) for name in (listed.folders if listed else ()))

    def _counted(self, path: str) -> str:
        self._left -= 1
        if self._left < 0:
            raise CannotConfine(TOO_MUCH)
        return path

    def _listed(self, path: str, inside: str, without: Collection[str]) -> _Listed | None:
        """A directory; None if there is none that could be listed."""
        known, status = self._known.get(path), found(path or ".", self._git)
        if known is not None and status is not None and known.identity == _identity(status):
            if not self._budget.allows_entry():
                raise CannotConfine(TOO_MUCH)
            self.seen[path] = known
            return known
        with ExitStack() as held_open:
            try:
                folder = listed_inside(path, held_open, self._git)
            except OSError:
                return None
            status = os.fstat(folder)
            is_settled = time.time_ns() - status.st_ctime_ns > SETTLED_NANOSECONDS
            entries = links_and_folders(folder, self._budget)
        listed = _Listed(
            _identity(status),
            tuple(name for name, is_link in entries if is_link and (inside or not name.startswith(MOVED_ASIDE))),
            tuple(
                name
                for name, is_link in entries
                if not is_link
                and (inside or not (name in without or name.startswith(MOVED_ASIDE)))
                and not _OBJECTS.fullmatch(os.path.join(inside, name))
            ),
        )
        if is_settled:
            self.seen[path] = listed
        return listed


def links_and_folders(folder: int, budget: Budget) -> list[tuple[str, bool]]:
    """What is in a directory but for files, and whether it is a link.

    Raises:
        CannotConfine: there is too much.
    """
    kept: list[tuple[str, bool]] = []
    if not budget.allows(_OPENING):
        raise CannotConfine(TOO_MUCH)
    with os.scandir(folder) as entries:
        for entry in entries:
            if not budget.allows_entry():
                raise CannotConfine(TOO_MUCH)
            if (is_link := entry.is_symlink()) or entry.is_dir(follow_symlinks=False):
                kept.append((entry.name, is_link))
    return kept


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mode, status.st_mtime_ns, status.st_ctime_ns
