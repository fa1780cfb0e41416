"""Where nothing keeps a command from `.git`: what git runs and obeys there is remembered, and put back afterwards.

So are the settings of agents. This is detection: until the command has ended, what it put there is there. What
it did to objects and branches is not looked at; those are data, and nothing runs by them.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from parley.errors import CannotConfine, os_detail
from parley.ports.commands import Ended, Output, Start, Starter
from parley.sandbox.kept import (
    MISSING,
    Budget,
    CannotPutBack,
    Folder,
    Item,
    is_same,
    is_whole,
    put_back,
    take,
    unused_name,
)
from parley.sandbox.places import Places, above, is_anothers, opened
from parley.sandbox.threads import in_thread
from parley.sandbox.vacancies import Vacancy
from parley.wire.text import sayable

__all__ = ["Guard", "Watch"]

log: Final = logging.getLogger(__name__)

_FORBIDDEN: Final = 1
"""How a command ends that changed what is protected, as if it had been kept from it in the first place."""

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

    async def run(self, starter: Starter, prepare: Callable[[list[Watch]], Start], *, output: Output) -> Ended:
        """Have a command started, and look at all watches when it is over. One that changed something has failed.

        It is prepared beside the loop, by what adds the watches to a list.
        """
        watches: list[Watch] = []
        said: list[str] = []
        ended: Ended | None = None
        try:
            start = await in_thread(lambda: prepare(watches))
            ended = await starter.start(start, output=output)
        finally:
            if watches:
                said = await in_thread(lambda: self.leave(watches), needs_one=False)
                if ended is None:
                    for sentence in said:
                        log.warning("%s", sentence)
        for sentence in said:
            output("stderr", f"{sentence}\n".encode())
        return Ended(exit_code=_FORBIDDEN, seconds=ended.seconds) if said and ended.exit_code == 0 else ended

    def enter(self, places: Places, paths: Iterable[str], entered: list[Watch]) -> None:
        """Remember what is at these paths, all of them protected; each watch is added to the list as it begins.

        Raises:
            CannotConfine: something cannot be looked at.
        """
        with self._lock:
            for path in paths:
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
        with ExitStack() as held_open:
            folders = [folder for folder in above(path) if places.is_writable(folder)]
            self._way = _way(folders, held_open)
            """From the outermost root on, all directories that lead to it."""
            is_at_its_end = self._way and folders[0] == os.path.dirname(path)
            self._parent = self._way[-1].folder if is_at_its_end else _reached(os.path.dirname(path), held_open)
            """Where it is. What was put in its place is moved there, too."""
            self._folder = self._parent
            if self._is_git:
                self._folder = _opened(os.path.basename(path), held_open, self._parent)
                self._way.append(_Step(self._parent, os.path.basename(path), self._folder))
            held = {self._parent, *(each for step in self._way for each in (step.parent, step.folder))}
            self._modes = {each: stat.S_IMODE(os.fstat(each).st_mode) for each in held}
            names = tuple(_names_in(self._folder)) if self._is_git else (os.path.basename(path),)
            self.before: Known = {
                name: MISSING if self._is_vacant else self._take(name, known.get(name, MISSING)) for name in names
            }
            for name, item in self.before.items():
                if not is_whole(item):
                    place = os.path.join(path, name) if self._is_git else path
                    raise CannotConfine(f"{sayable(place)} cannot be watched: it cannot be read, or holds too much")
            self._told_only = {name: self._take(name) for name in _TOLD_ONLY} if self._is_git else {}
            self._descriptors = held_open.pop_all()

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
            if self._is_vacant and _is_anothers(last, folder):
                return []
            now = take(last, folder, _budget(), known=before, opens=True)
            if self._is_vacant and isinstance(now, Folder) and now.is_whole:
                return self._emptied(now)
            found = put_back(last, before, now, folder=folder, aside=self._parent)
            return [os.path.join(os.path.dirname(name), each) for each in found]

    def _emptied(self, now: Folder) -> list[str]:
        """Let a `.git` be empty. It may be that of another server, which needs it for its own commands."""
        name = os.path.basename(self.path)
        if now.entries:
            with ExitStack() as held_open:
                aside = unused_name(name)
                os.mkdir(aside, dir_fd=self._parent)
                source, target = (_opened(each, held_open, self._parent) for each in (name, aside))
                for each in now.entries:
                    os.rename(each, each, src_dir_fd=source, dst_dir_fd=target)
        try:
            if (vacancy := Vacancy.taken(self.path, self._parent)) is not None:
                vacancy.leave()
        except CannotConfine:
            pass  # somebody else keeps it, which is nothing that the command did
        return [name] if now.entries else []

    def _take(self, name: str, known: Item = MISSING) -> Item:
        with self._folder_of(name) as (folder, last):
            return MISSING if folder is None else take(last, folder, _budget(), known=known)

    @contextmanager
    def _folder_of(self, name: str) -> Iterator[tuple[int | None, str]]:
        """The directory that a name is in, reached without following a link; None if there is none."""
        way, last = os.path.split(name)
        with ExitStack() as held_open:
            folder: int | None = None
            try:
                folder = _opened_inside(way, held_open, self._folder)
            except OSError:
                pass
            yield folder, last


def _way(folders: list[str], held_open: ExitStack) -> list[_Step]:
    """From the last of these directories to the first, which lies in all others."""
    way: list[_Step] = []
    for outer, inner in zip(folders[:0:-1], folders[-2::-1], strict=True):
        parent = way[-1].folder if way else _reached(outer, held_open)
        name = os.path.basename(inner)
        way.append(_Step(parent, name, _opened(name, held_open, parent)))
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
    # Other commands may still run: of the path that it has now, only the name is used, in the very directory.
    name = os.path.basename(os.readlink(f"/proc/self/fd/{step.folder}"))
    with ExitStack() as held_open:
        found_in = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=step.folder)
        held_open.callback(os.close, found_in)
        if not os.path.samestat(os.lstat(name, dir_fd=found_in), ours):
            raise FileNotFoundError
        usurper = take(step.name, step.parent, Budget(entries=0, content_bytes=0))
        put_back(step.name, MISSING, usurper, folder=step.parent, aside=step.parent)
        os.rename(name, step.name, src_dir_fd=found_in, dst_dir_fd=step.parent)
        if not os.path.samestat(os.lstat(step.name, dir_fd=step.parent), ours):
            os.rename(step.name, name, src_dir_fd=step.parent, dst_dir_fd=found_in)
            raise OSError("others move it")
    return True


def _names_in(git: int) -> Iterator[str]:
    """What is watched in a directory of git, with its other working trees and its submodules."""
    yield from _IN_GIT
    for name in _few(_folders_in("worktrees", git)):
        yield from (f"{name}/{each}" for each in _IN_WORKTREES)
    for part in _few(_submodules(git)):
        yield from (f"{part}/{each}" for each in _IN_GIT)


def _few(parts: list[str]) -> list[str]:
    if len(parts) > _MOST_PARTS:
        raise CannotConfine(f"more than {_MOST_PARTS} working trees or submodules cannot be watched")
    return parts


def _submodules(git: int) -> list[str]:
    """Where they are. The name of one may have slashes in it, and submodules have submodules."""
    parts: list[str] = []
    waiting = ["modules"]
    while waiting and len(parts) <= _MOST_PARTS:
        for folder in _folders_in(waiting.pop(), git):
            is_part = _is_part(folder, git)
            if is_part:
                parts.append(folder)
            if folder.count("/") < _DEEPEST_PART:
                waiting.append(f"{folder}/modules" if is_part else folder)
    return parts


def _is_part(folder: str, git: int) -> bool:
    with ExitStack() as held_open:
        try:
            found = _opened_inside(folder, held_open, git)
        except OSError:
            return False
        return any(_found(name, found) for name in ("HEAD", "config"))


def _found(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=folder)
    except OSError:
        return None


def _is_anothers(name: str, folder: int) -> bool:
    found = _found(name, folder)
    return found is not None and is_anothers(found, os.fstat(folder))


def _folders_in(name: str, git: int) -> list[str]:
    """The directories in a directory, none of them a link; nothing if it is none itself."""
    with ExitStack() as held_open:
        try:
            with os.scandir(_opened_inside(name, held_open, git)) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
    return [f"{name}/{each}" for each in sorted(found)]


def _reached(path: str, held_open: ExitStack) -> int:
    descriptor = opened(path, os.O_RDONLY)
    held_open.callback(os.close, descriptor)
    return descriptor


def _opened_inside(path: str, held_open: ExitStack, folder: int) -> int:
    for each in filter(None, path.split("/")):
        folder = _opened(each, held_open, folder)
    return folder


def _opened(name: str, held_open: ExitStack, folder: int) -> int:
    descriptor = os.open(name, _OPEN_FOLDER, dir_fd=folder)
    held_open.callback(os.close, descriptor)
    return descriptor


def _budget() -> Budget:
    return Budget(entries=_MOST_ENTRIES, content_bytes=_MOST_BYTES)
