"""Where nothing keeps a command from `.git`: what git runs and obeys there is remembered, and put back afterwards.

So are the settings of agents. This is detection: until the command has ended, what it put there is there. What
it did to objects and branches is not looked at; those are data, and nothing runs by them. Who else changes
something meanwhile cannot be told from the command: nothing is deleted, and all that is moved aside is named.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple, Self

from parley.errors import CannotConfine, os_detail
from parley.ports.commands import Ended, Output, Start, Starter
from parley.sandbox.kept import (
    MISSING,
    Aside,
    Budget,
    CannotPutBack,
    File,
    Folder,
    Item,
    is_same,
    is_whole,
    opened_up,
    put_back,
    take,
    unused_name,
)
from parley.sandbox.places import Places, above, is_anothers, is_below, opened
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

_HEAD: Final = re.compile(rb"ref: refs/(?!.*\.\.)[^\0\n]+\n?|[0-9a-f]{40}(?:[0-9a-f]{24})?\n?")
"""A branch or a commit that was switched to: data, as branches are."""

_MOST_ENTRIES: Final = 4096
_MOST_BYTES: Final = 32 * 1024 * 1024
"""For each directory that is watched. Hooks may be compiled programs; what is unchanged is not read again."""
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
_REACH_FOLDER: Final = _OPEN_FOLDER | os.O_PATH


class Guard:
    """Commands that run at the same time are measured by the same state: that before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[Key, Watch] = {}
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
            is_heard = False
            try:
                if watches:
                    await in_thread(lambda: said.extend(self.leave(watches)), needs_one=False)
                is_heard = ended is not None
            finally:
                if not is_heard:
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
                folders = tuple(folder for folder in above(path) if places.is_writable(folder))
                watch = self._watches.get((path, folders))
                if watch is None:
                    try:
                        watch = self._begun(path, folders, places)
                    except OSError as error:
                        raise CannotConfine(f"{sayable(path)} cannot be watched: {os_detail(error)}") from None
                    self._watches[watch.key] = watch
                watch.users += 1
                entered.append(watch)

    def _begun(self, path: str, folders: tuple[str, ...], places: Places) -> Watch:
        """A watch from other roots looks at another way, and holds what is at its end to the same state."""
        of_others = next((watch for watch in self._watches.values() if watch.path == path), None)
        if of_others is not None:
            of_others.unsaid += of_others.restored()
            return Watch(path, folders, of_others.kind, of_others.before)
        return Watch.begun(path, folders, Kind.of(path, places), self._known.pop(path, {}))

    def leave(self, watches: Iterable[Watch]) -> list[str]:
        """Put back what is not as it was; returns a sentence for each place where something was not."""
        told: list[str] = []
        with self._lock:
            for watch in watches:
                try:
                    told += watch.unsaid
                    watch.unsaid = []
                    told += watch.restored()
                except OSError as error:
                    told.append(f"{sayable(watch.path)} is protected, and cannot be looked at: {os_detail(error)}")
                watch.users -= 1
                if not watch.users:
                    del self._watches[watch.key]
                    watch.close()
                    self._known[watch.path] = watch.before
                    if len(self._known) > _MOST_KNOWN:
                        del self._known[next(iter(self._known))]
        return told


Known = dict[str, Item]
"""What is there, by its path from the place that is watched."""

Key = tuple[str, tuple[str, ...]]
"""A place, and the directories above it that a command may write to, from the nearest on."""


class Kind(NamedTuple):
    """What a place is to be."""

    is_git: bool
    is_vacant: bool

    @classmethod
    def of(cls, path: str, places: Places) -> Self:
        return cls(is_git=path in places.git_folders, is_vacant=path in places.vacant)


class _Step(NamedTuple):
    """A directory on the way to what is watched, or within it, that a command could replace."""

    parent: int
    name: str
    folder: int
    path: str
    """Of one within it, its path from there."""


class Watch:
    """One place that is to stay as it is, where it is."""

    def __init__(self, path: str, folders: tuple[str, ...], kind: Kind, before: Known) -> None:
        """Hold a place to what it was `before`."""
        self.path = path
        self.key: Key = path, folders
        self.kind = kind
        self.users = 0
        self.unsaid: list[str] = []
        """What was found to be changed, and put back, while nobody was there to be told."""
        self.before = before
        with ExitStack() as held_open:
            self._way = _way(folders, held_open)
            """From the outermost root on, all directories that lead to it."""
            is_at_its_end = self._way and folders[0] == os.path.dirname(path)
            self._parent = self._way[-1].folder if is_at_its_end else _reached(os.path.dirname(path), held_open)
            """Where it is."""
            self._folder = self._parent
            """What is watched is in it, and what was put in the place of that is moved there, too."""
            if kind.is_git:
                self._folder = _opened(os.path.basename(path), held_open, self._parent)
                self._way.append(_Step(self._parent, os.path.basename(path), self._folder, path))
            self._inside = list(_steps_to(before, held_open, self._folder))
            held = {self._parent, *(each for step in self._steps for each in (step.parent, step.folder))}
            self._modes = {each: stat.S_IMODE(os.fstat(each).st_mode) for each in held}
            self._told_only = {name: self._take(name) for name in _TOLD_ONLY} if kind.is_git else {}
            self._descriptors = held_open.pop_all()

    @classmethod
    def begun(cls, path: str, folders: tuple[str, ...], kind: Kind, known: Known) -> Self:
        """Hold a place to what it is now. What is still as it was `known` need not be read again.

        Raises:
            CannotConfine: that cannot be remembered.
        """
        with ExitStack() as held_open:
            folder = _reached(path if kind.is_git else os.path.dirname(path), held_open)
            names = list(_names_in(folder)) if kind.is_git else [os.path.basename(path)]
            was = dict.fromkeys(names, MISSING) | known
            before = {name: MISSING if kind.is_vacant else _taken(name, folder, was[name]) for name in names}
        for name, item in before.items():
            if not is_whole(item):
                place = os.path.join(path, name) if kind.is_git else path
                raise CannotConfine(f"{sayable(place)} cannot be watched: it cannot be read, or holds too much")
        return cls(path, folders, kind, before)

    def close(self) -> None:
        self._descriptors.close()

    @property
    def _steps(self) -> list[_Step]:
        return self._way + self._inside

    def restored(self) -> list[str]:
        """Put it back, if it has changed; says so."""
        changed: list[str] = []
        lost: dict[str, str] = {}
        kept: list[str] = []
        if self._was_shut():
            changed.append(_ALL_OF_IT)
        for step in self._way:
            aside = Aside(step.parent)
            try:
                if _is_brought_back(step, aside):
                    changed.append(_ALL_OF_IT)
            except OSError as error:
                lost[_ALL_OF_IT] = _why(error)
            kept += [os.path.join(os.path.dirname(step.path), name) for name in aside.names]
        if not lost:
            aside = Aside(self._folder)
            changed += self._brought_back_inside(aside, lost)
            changed += self._contents_put_back(aside, lost)
            around = self.path if self.kind.is_git else os.path.dirname(self.path)
            kept += [os.path.join(around, name) for name in aside.names]
        place = sayable(self.path)
        if _ALL_OF_IT in lost:
            said = [f"{place} is protected: it was replaced and cannot be put back: {lost[_ALL_OF_IT]}"]
        else:
            left = [f"{name} ({why})" if why else name for name, why in lost.items()]
            said = [*self._told("put back", changed), *self._told("left as it is", left)]
        return [*said, f"{place} is protected: what was found there is now {_listed(kept)}"] if kept else said

    def _was_shut(self) -> bool:
        """Open all directories again through which nothing could be looked at otherwise."""
        shut = [each for each, mode in self._modes.items() if mode & ~os.fstat(each).st_mode & stat.S_IRWXU]
        for each in shut:
            os.fchmod(each, self._modes[each])
        return bool(shut)

    def _brought_back_inside(self, aside: Aside, lost: dict[str, str]) -> Iterator[str]:
        for step in self._inside:
            if any(is_below(step.path, folder) for folder in lost):
                continue
            found = len(aside.names)
            try:
                if _is_brought_back(step, aside):
                    yield step.path
            except OSError as error:
                was_in_use = any(
                    item != MISSING and is_below(name, step.path) for name, item in self.before.items()
                )
                if was_in_use or len(aside.names) > found:
                    lost[step.path] = _why(error)

    def _contents_put_back(self, aside: Aside, lost: dict[str, str]) -> Iterator[str]:
        gone = list(lost)
        for name, before in self.before.items():
            if any(is_below(name, folder) for folder in gone):
                continue
            try:
                yield from self._put_back(name, before, aside)
            except (OSError, CannotPutBack, CannotConfine) as error:
                lost[name] = os_detail(error) if isinstance(error, OSError) else ""
        for name, was in self._told_only.items():
            if not is_same(was, self._take(name, was)):
                lost[name] = ""

    def _told(self, what: str, names: list[str]) -> Iterator[str]:
        if names:
            which = _listed(sorted(names)) if self.kind.is_git and _ALL_OF_IT not in names else "it"
            yield f"{sayable(self.path)} is protected: what was done to {which} while the command ran was {what}"

    def _put_back(self, name: str, before: Item, aside: Aside) -> list[str]:
        way, last = os.path.split(name)
        with ExitStack() as held_open:
            moved = len(aside.names)
            folder = _cleared_way(way, held_open, self._folder, aside)
            if folder is None:
                if before != MISSING:
                    raise CannotPutBack(name)
                return [way] if len(aside.names) > moved else []
            if self.kind.is_vacant and _is_anothers(last, folder):
                return []
            now = take(last, folder, _budget(), known=before, opens=True)
            if last == "HEAD" and isinstance(now, File) and _HEAD.fullmatch(now.content or b""):
                return []
            if self.kind.is_vacant and isinstance(now, Folder) and now.is_whole:
                return self._emptied(now, aside)
            found = put_back(last, before, now, folder=folder, aside=aside)
            return [os.path.join(way, each) for each in found]

    def _emptied(self, now: Folder, aside: Aside) -> list[str]:
        """Let a `.git` be empty. It may be that of another server, which needs it for its own commands."""
        name = os.path.basename(self.path)
        if now.entries:
            with ExitStack() as held_open:
                unused = unused_name(name)
                os.mkdir(unused, dir_fd=self._parent)
                aside.names.append(unused)
                source, target = (_opened(each, held_open, self._parent) for each in (name, unused))
                for each in now.entries:
                    os.rename(each, each, src_dir_fd=source, dst_dir_fd=target)
        try:
            if (vacancy := Vacancy.taken(self.path, self._parent)) is not None:
                vacancy.leave()
        except CannotConfine:
            pass  # somebody else keeps it, which is nothing that the command did
        return [name] if now.entries else []

    def _take(self, name: str, known: Item = MISSING) -> Item:
        return _taken(name, self._folder, known)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(sayable, names[:_MOST_NAMED])) + more


def _why(error: OSError) -> str:
    return "it was deleted" if isinstance(error, FileNotFoundError) else os_detail(error)


def _taken(name: str, folder: int, known: Item) -> Item:
    """What is there, reached without following a link."""
    way, last = os.path.split(name)
    with ExitStack() as held_open:
        try:
            return take(last, _opened_inside(way, held_open, folder), _budget(), known=known)
        except FileNotFoundError:
            return MISSING


def _cleared_way(way: str, held_open: ExitStack, folder: int, aside: Aside) -> int | None:
    """The directory at the end of a way; None if there is none. What is no directory is moved aside."""
    for each in filter(None, way.split("/")):
        try:
            inner = os.open(each, _REACH_FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            aside.move(each, folder)
            return None
        held_open.callback(os.close, inner)
        held_open.enter_context(opened_up(inner))
        folder = inner
    return folder


def _way(folders: tuple[str, ...], held_open: ExitStack) -> list[_Step]:
    """From the last of these directories to the first, which lies in all others."""
    way: list[_Step] = []
    for outer, inner in zip(folders[:0:-1], folders[-2::-1], strict=True):
        parent = way[-1].folder if way else _reached(outer, held_open)
        name = os.path.basename(inner)
        way.append(_Step(parent, name, _opened(name, held_open, parent), inner))
    return way


def _steps_to(names: Iterable[str], held_open: ExitStack, folder: int) -> Iterator[_Step]:
    """All directories that are there on the ways to these names, from a directory on, outer ones first."""
    ways = {way for name in names for way in _along(os.path.dirname(name))}
    held = {"": folder}
    for way in sorted(ways, key=lambda way: (way.count("/"), way)):
        outer, name = os.path.split(way)
        if outer in held and _found(name, held[outer]) is not None:
            held[way] = _opened(name, held_open, held[outer])
            yield _Step(held[outer], name, held[way], way)


def _along(way: str) -> Iterator[str]:
    """All directories on a way, outer ones first, and the one at its end."""
    parts = way.split("/") if way else []
    return ("/".join(parts[: number + 1]) for number in range(len(parts)))


def _is_brought_back(step: _Step, aside: Aside) -> bool:
    """See that a directory is where it was, and not another in its place; True if it was not.

    Another is moved aside, also if this one cannot be brought back.

    Raises:
        OSError: it cannot.
    """
    ours = os.fstat(step.folder)
    try:
        if os.path.samestat(os.lstat(step.name, dir_fd=step.parent), ours):
            return False
        aside.move(step.name, step.parent)
    except FileNotFoundError:
        pass
    # Other commands may still run: of the path that it has now, only the name is used, in the very directory.
    name = os.path.basename(os.readlink(f"/proc/self/fd/{step.folder}"))
    with ExitStack() as held_open:
        found_in = os.open("..", _REACH_FOLDER, dir_fd=step.folder)
        held_open.callback(os.close, found_in)
        held_open.enter_context(opened_up(found_in))
        if not os.path.samestat(os.lstat(name, dir_fd=found_in), ours):
            raise FileNotFoundError
        os.rename(name, step.name, src_dir_fd=found_in, dst_dir_fd=step.parent)
        if not os.path.samestat(os.lstat(step.name, dir_fd=step.parent), ours):
            os.rename(step.name, name, src_dir_fd=step.parent, dst_dir_fd=found_in)
            raise OSError("others move it")
    return True


def _names_in(git: int) -> Iterator[str]:
    """What is watched in a directory of git, with its other working trees and its submodules.

    Where a link stands on the way to something, it is the link that is watched.
    """
    names = [*_IN_GIT]
    for name in _few(_folders_in("worktrees", git)):
        names += (f"{name}/{each}" for each in _IN_WORKTREES)
    for part in _few(_submodules(git)):
        names += (f"{part}/{each}" for each in _IN_GIT)
    links = {way: _link_on(way, git) for way in ("modules", "worktrees", *map(os.path.dirname, names))}
    yield from dict.fromkeys(filter(None, links.values()))
    yield from (name for name in names if links[os.path.dirname(name)] is None)


def _link_on(way: str, git: int) -> str | None:
    """The first on a way that is no directory."""
    with ExitStack() as held_open:
        folder = git
        for each in _along(way):
            name = os.path.basename(each)
            if (found := _found(name, folder)) is None:
                return None
            if not stat.S_ISDIR(found.st_mode):
                return each
            folder = _opened(name, held_open, folder)
    return None


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
