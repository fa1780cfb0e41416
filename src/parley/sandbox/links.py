"""Links in a directory of git, through which it would write to any file of the user's, or delete there.

It writes by names of its own, and by those that others can choose, to almost all that is there: so links are
looked for everywhere but among objects, which it never writes in place. Looks, and changes nothing.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Final, NamedTuple

from parley.errors import SandboxUnavailable
from parley.sandbox.descriptors import found, listed_inside
from parley.sandbox.kept import MOVED_ASIDE, SETTLED_NANOSECONDS, Budget, Patience

__all__ = ["TOO_MUCH", "WITHOUT_END", "Links", "Listing", "Seen", "links_and_folders"]

TOO_MUCH: Final = "it holds too much"

WITHOUT_END: Final = sys.maxsize
"""Entries, where only time ends a look."""

_OBJECTS: Final = re.compile(r"objects/[0-9a-f]{2}")
"""What they are kept in, by the first digits of their names: new ones are renamed into place."""

_MOST_AMONG_LINKS: Final = 262_144
"""Files and directories among which they are: more than there are branches anywhere."""
_MOST_LINKS: Final = 1024
"""Each takes some steps to be watched or removed."""
_MOST_AT_ONCE: Final = 65_536
"""Links and directories that are read before the first of them is removed: more than may be there beforehand."""
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
    cost: int
    is_whole: bool = True


Seen = Mapping[str, _Listed]
"""Directories that need not be listed again while they are the same, by their paths from the outermost."""


_NOTHING: Final = _Listed((), (), (), 0)


class Links:
    """Looks for links in one directory of git after the other.

    Before a command there may not be too much. After it, whoever asks removes each link as it is found, and only
    time ends that.
    """

    def __init__(self, git: int, patience: Patience, seen: Seen, *, is_after: bool = False) -> None:
        self._git = git
        self._known = seen
        self.seen: dict[str, _Listed] = {}
        self._is_after = is_after
        self._budget = Budget(patience, entries=WITHOUT_END if is_after else _MOST_AMONG_LINKS, content_bytes=0)
        self._left = WITHOUT_END if is_after else _MOST_LINKS
        self._stays = 0
        """What it costs to look at all that is no link."""

    def of(self, part: str, without: Collection[str]) -> Iterator[str]:
        """Those in a part, and directories that are too deep to be looked into for some. Of what lies in it
        directly, some is left out.

        Raises:
            SandboxUnavailable: there are too many, or too many files among them.
        """
        waiting = deque([""])
        while waiting:
            inside = waiting.popleft()
            path = os.path.join(part, inside) if inside else part
            if inside.count("/") >= _DEEPEST:
                yield self._counted(path)
                continue
            while True:
                listed = self._listed(path, inside, without)
                yield from (self._counted(os.path.join(path, name)) for name in listed.links)
                if listed.is_whole:
                    break
                if self._budget.is_over or not (self._is_after and listed.links):
                    raise SandboxUnavailable(TOO_MUCH)
            self._stays += listed.cost - len(listed.links)
            waiting.extend(os.path.join(inside, name) for name in listed.folders)
            if len(waiting) > _MOST_AMONG_LINKS:
                raise SandboxUnavailable(TOO_MUCH)

    @property
    def were_among_too_much(self) -> bool:
        """Whether there would be too much before a command also without any link."""
        return self._stays > _MOST_AMONG_LINKS

    def _counted(self, path: str) -> str:
        self._left -= 1
        if self._left < 0:
            raise SandboxUnavailable(TOO_MUCH)
        return path

    def _listed(self, path: str, inside: str, without: Collection[str]) -> _Listed:
        """A directory; nothing is in one that cannot be listed."""
        known, status = self._known.get(path), found(path or ".", self._git)
        if known is not None and status is not None and known.identity == _identity(status):
            if not self._budget.allows(known.cost):
                raise SandboxUnavailable(TOO_MUCH)
            self.seen[path] = known
            return known
        with ExitStack() as held_open:
            try:
                folder = listed_inside(path, held_open, self._git)
            except OSError:
                return _NOTHING
            status = os.fstat(folder)
            is_settled = time.time_ns() - status.st_ctime_ns > SETTLED_NANOSECONDS
            entries, cost, is_whole = links_and_folders(folder, self._budget)
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
            cost,
            is_whole,
        )
        if is_settled and is_whole:
            self.seen[path] = listed
        return listed


class Listing(NamedTuple):
    """What is in a directory but for files."""

    entries: list[tuple[str, bool]]
    """Names, and whether each is one of a link."""
    cost: int
    is_whole: bool
    """Otherwise there is more in it than was looked at."""


def links_and_folders(folder: int, budget: Budget) -> Listing:
    kept: list[tuple[str, bool]] = []
    cost = _OPENING
    if not budget.allows(_OPENING):
        return Listing(kept, cost, is_whole=False)
    with os.scandir(folder) as entries:
        for entry in entries:
            cost += 1
            if not budget.allows_entry() or len(kept) >= _MOST_AT_ONCE:
                return Listing(kept, cost, is_whole=False)
            if (is_link := entry.is_symlink()) or entry.is_dir(follow_symlinks=False):
                kept.append((entry.name, is_link))
    return Listing(kept, cost, is_whole=True)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mode, status.st_mtime_ns, status.st_ctime_ns
