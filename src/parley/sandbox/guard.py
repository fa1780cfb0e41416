"""Where nothing keeps a command from `.git`: what git runs and obeys there is remembered, and put back afterwards.

So are the settings of agents. This is detection: until the command has ended, what it put there is there. What
it did to objects and branches is not looked at; those are data, and nothing runs by them.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from parley.errors import CannotConfine, os_detail
from parley.sandbox.kept import MISSING, Budget, CannotPutBack, Folder, Item, is_same, put_back, take
from parley.sandbox.places import Places, above
from parley.sandbox.vacancies import Vacancy
from parley.wire.text import sayable

__all__ = ["Guard", "Watch"]

_IN_GIT: Final = (
    "HEAD",
    "commondir",
    "config",
    "config.worktree",
    "gitdir",
    "hooks",
    "info",
    "objects/info/alternates",
    "objects/info/http-alternates",
    "rebase-apply",
    "rebase-merge",
)
"""What git runs or obeys. The last two are a rebase that was begun, with programs to run on the way."""
_IN_WORKTREES: Final = ("HEAD", "commondir", "config.worktree", "gitdir")
_TOLD_ONLY: Final = ("packed-refs",)
"""Putting it back would lose the branches that were packed meanwhile; nothing runs by it."""

_MOST_ENTRIES: Final = 4096
_MOST_BYTES: Final = 4 * 1024 * 1024
"""For each directory that is watched. What hooks and settings there are is a hundredth of that, and reading so
much takes milliseconds."""
_MOST_KNOWN: Final = 16
"""Places that are remembered from one command to the next."""
_MOST_PARTS: Final = 256
"""Working trees and submodules of one repository."""
_DEEPEST_PART: Final = 8
"""Slashes in the path of a submodule within `.git`."""
_MOST_NAMED: Final = 8
"""How many changes are told of by their names."""

_ALL_OF_IT: Final = "/"
"""Among the names of what has changed in a directory: the directory itself."""

_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Guard:
    """Commands that run at the same time are measured by the same state: that before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[str, Watch] = {}
        self._known: dict[str, Known] = {}
        """What was there last, the latest at the end: most of it is still the same."""

    def enter(self, places: Places, entered: list[Watch]) -> None:
        """Remember what is protected there; each watch is added to the list as it begins.

        Raises:
            CannotConfine: something cannot be looked at.
        """
        with self._lock:
            for path in places.git_folders + places.protected + places.vacant:
                watch = self._watches.get(path)
                if watch is None:
                    try:
                        watch = Watch(path, places, self._known.pop(path, {}))
                    except OSError as error:
                        raise CannotConfine(f"{sayable(path)} cannot be watched: {os_detail(error)}") from None
                    self._watches[path] = watch
                watch.users += 1
                entered.append(watch)

    def leave(self, watches: Iterable[Watch]) -> list[str]:
        """Put back what is not as it was; returns a sentence for each place where something was not."""
        told: list[str] = []
        with self._lock:
            for watch in watches:
                try:
                    told += watch.restored()
                except OSError as error:
                    told.append(f"{sayable(watch.path)} is protected, and cannot be looked at: {os_detail(error)}")
                watch.users -= 1
                if not watch.users:
                    del self._watches[watch.path]
                    watch.close()
                    self._known[watch.path] = watch.before
                    if len(self._known) > _MOST_KNOWN:
                        del self._known[next(iter(self._known))]
        return told


Known = dict[str, Item]
"""What is there, by its path from the place that is watched."""


class _Step(NamedTuple):
    """A directory on the way to what is watched, that a command could replace."""

    parent: int
    name: str
    folder: int


class Watch:
    """One place that is to stay as it is, where it is."""

    def __init__(self, path: str, places: Places, known: Known) -> None:
        self.path = path
        self.users = 0
        self._is_git = path in places.git_folders
        self._is_vacant = path in places.vacant
        with ExitStack() as opened:
            self._way = _way_to(path, places, opened)
            """From the outermost root on, all directories that lead to it."""
            self._parent = _opened(os.path.dirname(path), opened)
            """Where it is. What was put in its place is moved there, too."""
            self._folder = _opened(path, opened) if self._is_git else self._parent
            if self._is_git:
                self._way.append(_Step(self._parent, os.path.basename(path), self._folder))
            held = {self._parent, *(each for step in self._way for each in (step.parent, step.folder))}
            self._modes = {each: stat.S_IMODE(os.fstat(each).st_mode) for each in held}
            names = tuple(_names_in(self._folder)) if self._is_git else (os.path.basename(path),)
            self.before: Known = {
                name: MISSING if self._is_vacant else self._take(name, known.get(name, MISSING)) for name in names
            }
            self._told_only = {name: self._take(name) for name in _TOLD_ONLY} if self._is_git else {}
            self._descriptors = opened.pop_all()

    def close(self) -> None:
        self._descriptors.close()

    def restored(self) -> list[str]:
        """Put it back, if it has changed; says so."""
        changed: list[str] = []
        lost: list[str] = []
        try:
            if any([self._was_shut(), *map(_is_brought_back, self._way)]):
                changed.append(_ALL_OF_IT)
        except OSError as error:
            why = "it was deleted" if isinstance(error, FileNotFoundError) else os_detail(error)
            return [f"{sayable(self.path)} is protected: it was replaced and cannot be put back: {why}"]
        for name, before in self.before.items():
            try:
                changed += self._put_back(name, before)
            except (OSError, CannotPutBack, CannotConfine) as error:
                lost.append(f"{name} ({os_detail(error)})" if isinstance(error, OSError) else name)
        lost += [name for name, was in self._told_only.items() if not is_same(was, self._take(name, was))]
        return [*self._told("put back", changed), *self._told("left as it is", lost)]

    def _was_shut(self) -> bool:
        """Open all directories again through which nothing could be looked at otherwise."""
        shut = [each for each, mode in self._modes.items() if mode & ~os.fstat(each).st_mode & stat.S_IRWXU]
        for each in shut:
            os.fchmod(each, self._modes[each])
        return bool(shut)

    def _told(self, what: str, names: list[str]) -> Iterator[str]:
        if not names:
            return
        listed = ", ".join(map(sayable, sorted(names)[:_MOST_NAMED]))
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        which = f"{listed}{more}" if self._is_git and _ALL_OF_IT not in names else "it"
        yield f"{sayable(self.path)} is protected: what the command did to {which} was {what}"

    def _put_back(self, name: str, before: Item) -> list[str]:
        with self._folder_of(name) as (folder, last):
            if folder is None:
                if before != MISSING:
                    raise CannotPutBack(name)
                return []
            now = take(last, folder, _budget(), known=before, opens=True)
            if self._is_vacant and isinstance(now, Folder) and now.is_whole:
                return self._emptied(now)
            found = put_back(last, before, now, folder=folder, aside=self._parent)
            return [os.path.join(os.path.dirname(name), each) for each in found]

    def _emptied(self, now: Folder) -> list[str]:
        """Let a `.git` be empty. It may be that of another server, which needs it for its own commands."""
        name = os.path.basename(self.path)
        empty = Folder(mode=now.mode, entries={}, is_whole=True)
        found = put_back(name, empty, now, folder=self._parent, aside=self._parent)
        if (vacancy := Vacancy.taken(self.path)) is not None:
            vacancy.leave()
        return found

    def _take(self, name: str, known: Item = MISSING) -> Item:
        with self._folder_of(name) as (folder, last):
            return MISSING if folder is None else take(last, folder, _budget(), known=known)

    @contextmanager
    def _folder_of(self, name: str) -> Iterator[tuple[int | None, str]]:
        """The directory that a name is in, reached without following a link; None if there is none."""
        *folders, last = name.split("/")
        with ExitStack() as opened:
            folder: int | None = self._folder
            for each in folders:
                try:
                    folder = _opened(each, opened, folder)
                except OSError:
                    folder = None
                    break
            yield folder, last


def _way_to(path: str, places: Places, opened: ExitStack) -> list[_Step]:
    """From the outermost root on, all directories that lead to a path."""
    folders = [folder for folder in above(path) if places.is_writable(folder)]
    way: list[_Step] = []
    for outer, inner in zip(folders[:0:-1], folders[-2::-1], strict=True):
        parent = way[-1].folder if way else _opened(outer, opened)
        name = os.path.basename(inner)
        way.append(_Step(parent, name, _opened(name, opened, parent)))
    return way


def _is_brought_back(step: _Step) -> bool:
    """See that a directory is where it was, and not another in its place; True if it was not.

    Raises:
        OSError: it cannot be brought back.
    """
    ours = os.fstat(step.folder)
    try:
        if os.path.samestat(os.lstat(step.name, dir_fd=step.parent), ours):
            return False
    except FileNotFoundError:
        pass
    where = os.readlink(f"/proc/self/fd/{step.folder}")
    if not os.path.samestat(os.lstat(where), ours):
        raise FileNotFoundError
    usurper = take(step.name, step.parent, Budget(entries=0, content_bytes=0))
    put_back(step.name, MISSING, usurper, folder=step.parent, aside=step.parent)
    os.rename(where, step.name, dst_dir_fd=step.parent)
    return True


def _names_in(git: int) -> Iterator[str]:
    """What is watched in a directory of git, with its other working trees and its submodules."""
    yield from _IN_GIT
    for name in _folders_in("worktrees", git)[:_MOST_PARTS]:
        yield from (f"{name}/{each}" for each in _IN_WORKTREES)
    for part in _submodules(git):
        yield from (f"{part}/{each}" for each in _IN_GIT)


def _submodules(git: int) -> list[str]:
    """Where they are. The name of one may have slashes in it, and submodules have submodules."""
    parts: list[str] = []
    waiting = ["modules"]
    while waiting and len(parts) < _MOST_PARTS:
        for folder in _folders_in(waiting.pop(), git):
            is_part = any(_is_there(f"{folder}/{name}", git) for name in ("HEAD", "config"))
            if is_part:
                parts.append(folder)
            if folder.count("/") < _DEEPEST_PART:
                waiting.append(f"{folder}/modules" if is_part else folder)
    return parts[:_MOST_PARTS]


def _is_there(name: str, git: int) -> bool:
    try:
        os.lstat(name, dir_fd=git)
    except OSError:
        return False
    return True


def _folders_in(name: str, git: int) -> list[str]:
    """The directories in a directory, none of them a link; nothing if it is none itself."""
    with ExitStack() as opened:
        folder = git
        try:
            for each in name.split("/"):
                folder = _opened(each, opened, folder)
            with os.scandir(folder) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
    return [f"{name}/{each}" for each in sorted(found)]


def _opened(path: str, opened: ExitStack, folder: int | None = None) -> int:
    descriptor = os.open(path, _OPEN_FOLDER, dir_fd=folder)
    opened.callback(os.close, descriptor)
    return descriptor


def _budget() -> Budget:
    return Budget(entries=_MOST_ENTRIES, content_bytes=_MOST_BYTES)
