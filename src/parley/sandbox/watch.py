"""One place that is to stay as it is, where it is: looked at before a command, and put back after it."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Final, NamedTuple, Self

from msgspec.structs import replace

from parley.common.os_errors import os_detail
from parley.errors import SandboxUnavailable
from parley.sandbox.descriptors import entered, found, opened_in, opened_inside
from parley.sandbox.kept import (
    MISSING,
    Aside,
    Budget,
    CannotPutBack,
    File,
    Folder,
    Item,
    Missing,
    Patience,
    is_same,
    is_whole,
    put_back,
    take,
)
from parley.sandbox.links import Links, Seen
from parley.sandbox.obeyed import BEGUN, Layout, along, links, look, strays
from parley.sandbox.places import Places, is_anothers, is_below, opened
from parley.sandbox.vacancies import Vacancy
from parley.wire.text import quoted

__all__ = ["NO_PAST", "Key", "Kind", "Past", "Sentence", "Watch"]

_TOLD_ONLY: Final = ("packed-refs",)
"""Putting it back would lose the branches that were packed meanwhile; nothing runs by it."""
_LIST_OF_REFS: Final = "refs"
"""In `info`: what `git gc` writes there for others who fetch. Nothing runs by it either."""

_HEAD: Final = re.compile(rb"ref: refs/(?!.*\.\.)[^\0\n]+\n?|[0-9a-f]{40}(?:[0-9a-f]{24})?\n?")
"""A branch or a commit that was switched to: data, as branches are."""

_MOST_ENTRIES: Final = 4096
_MOST_BYTES: Final = 32 * 1024 * 1024
"""Of all that is watched at one place. Hooks may be compiled programs."""
_MOST_NAMED: Final = 8
"""How many changes are told of by their names."""

_ALL_OF_IT: Final = "/"
"""Among the names of what has changed in a directory: the directory itself."""


Known = dict[str, Item]
"""What is there, by its path from the place that is watched."""

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


_SEEN_BYTES: Final = 512
"""What it takes to remember a directory, about."""


class Past(NamedTuple):
    """What is remembered of a place from one command to the next."""

    items: Known
    seen: Seen
    content_bytes: int

    @property
    def size(self) -> int:
        return self.content_bytes + len(self.seen) * _SEEN_BYTES


NO_PAST: Final = Past({}, {}, 0)


class Sentence(NamedTuple):
    """Something to be told."""

    text: str
    is_fault: bool = True
    """Whether the command did what it must not."""


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

    def __init__(self, path: str, folders: tuple[str, ...], kind: Kind, past: Past, layout: Layout) -> None:
        """Hold a place to what it was in the `past`."""
        self.path = path
        self.key: Key = path, folders
        self.kind = kind
        self.users = 0
        self.roots: set[str] = set()
        """Of each of them, the one that it lies in."""
        self.unsaid: list[Sentence] = []
        """What was found to be changed, and put back, while nobody was there to be told."""
        self.past = past
        self.layout = layout
        self.is_cut = False
        """Whether the last look afterwards left something that it could not look at."""
        with ExitStack() as held_open:
            self._way = _way(folders, held_open)
            """From the outermost root on, all directories that lead to it."""
            is_at_its_end = self._way and folders[0] == os.path.dirname(path)
            self._parent = self._way[-1].folder if is_at_its_end else _held(os.path.dirname(path), held_open)
            """Where it is."""
            self._folder = self._parent
            """What is watched is in it, and what was put in the place of that is moved there, too."""
            if kind.is_git:
                self._folder = opened_in(os.path.basename(path), held_open, self._parent)
                self._way.append(_Step(self._parent, os.path.basename(path), self._folder, path))
            self._status = os.fstat(self._folder)
            self._inside = list(_steps_to(past.items, held_open, self._folder))
            held = {self._parent, *(each for step in self._steps for each in (step.parent, step.folder))}
            self._modes = {each: stat.S_IMODE(os.fstat(each).st_mode) for each in held}
            of_git = {self._folder: _ALL_OF_IT} | {step.folder: step.path for step in self._inside}
            self._of_git = of_git if kind.is_git else {}
            """By descriptors, how directories are called in which only git has anything to do."""
            self._told_only = (
                {name: self._take(name, MISSING, Patience()) for name in _TOLD_ONLY} if kind.is_git else {}
            )
            self._descriptors = held_open.pop_all()

    @classmethod
    def begun(cls, path: str, folders: tuple[str, ...], kind: Kind, known: Past, patience: Patience) -> Self:
        """Hold a place to what it is now. What is still as it was `known` need not be read again.

        Raises:
            SandboxUnavailable: that cannot be remembered.
        """
        layout, names, seen = Layout(), [os.path.basename(path)], known.seen
        if kind.is_vacant:
            return cls(path, folders, kind, NO_PAST._replace(items=dict.fromkeys(names, MISSING)), layout)
        with ExitStack() as held_open:
            folder = _held(path if kind.is_git else os.path.dirname(path), held_open)
            try:
                if kind.is_git:
                    layout, names, seen = look(folder, patience, known.seen)
            except SandboxUnavailable as error:
                raise SandboxUnavailable(f"{quoted(path)} cannot be watched: {error.detail}") from None
            budget = _budget(patience)
            items = {name: _taken(name, folder, known.items.get(name, MISSING), budget) for name in names}
        for name, item in items.items():
            if not is_whole(item):
                place = os.path.join(path, name) if kind.is_git else path
                raise SandboxUnavailable(f"{quoted(place)} cannot be watched: it cannot be read, or holds too much")
        return cls(path, folders, kind, Past(items, seen, _MOST_BYTES - budget.content_bytes), layout)

    def close(self) -> None:
        self._descriptors.close()

    @property
    def is_there(self) -> bool:
        """Whether a directory of git is where it was, and not another in its place."""
        try:
            return os.path.samestat(os.lstat(self.path), self._status)
        except (FileNotFoundError, NotADirectoryError):
            return False

    @property
    def _steps(self) -> list[_Step]:
        return self._way + self._inside

    def restored(self) -> list[Sentence]:
        """Put it back, if it has changed; says so."""
        lost: dict[str, str] = {}
        kept: list[str] = []
        data: list[str] = []
        self.is_cut = self.kind.is_git
        changed = list(self._modes_put_back())
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
            changed += self._contents_put_back(aside, lost, data, Patience())
            around = self.path if self.kind.is_git else os.path.dirname(self.path)
            kept += [os.path.join(around, name) for name in aside.names]
        place = quoted(self.path)
        if _ALL_OF_IT in lost:
            said = [Sentence(f"{place} is protected: it was replaced and cannot be put back: {lost[_ALL_OF_IT]}")]
        else:
            left = [f"{quoted(name)} ({why})" if why else quoted(name) for name, why in lost.items()]
            said = [
                *self._told("put back", list(map(quoted, changed))),
                *self._told("left as it is", left),
                *self._told("left as it is", list(map(quoted, data)), is_fault=False),
            ]
        found = [Sentence(f"{place} is protected: what was found there is now {_listed(map(quoted, kept))}")]
        return said + found if kept else said

    def _modes_put_back(self) -> Iterator[str]:
        """Open all directories again through which nothing could be looked at otherwise, and shut those of git
        again to others; says which."""
        for each, mode in self._modes.items():
            now = os.fstat(each).st_mode
            is_shut = mode & ~now & stat.S_IRWXU
            if is_shut or (each in self._of_git and now & ~mode & _OTHERS):
                os.fchmod(each, mode)
                yield _ALL_OF_IT if is_shut else self._of_git[each]

    def _brought_back_inside(self, aside: Aside, lost: dict[str, str]) -> Iterator[str]:
        for step in self._inside:
            if any(is_below(step.path, folder) for folder in lost):
                continue
            moved = len(aside.names)
            try:
                if _is_brought_back(step, aside):
                    yield step.path
            except OSError as error:
                was_in_use = any(
                    item != MISSING and is_below(name, step.path) for name, item in self.past.items.items()
                )
                if was_in_use or len(aside.names) > moved:
                    lost[step.path] = _why(error)

    def _contents_put_back(
        self, aside: Aside, lost: dict[str, str], data: list[str], patience: Patience
    ) -> Iterator[str]:
        gone = list(lost)
        for name, before in chain(
            self.past.items.items(), self._no_data(data, patience), self._not_there_before(lost, patience)
        ):
            if any(is_below(name, folder) for folder in gone):
                continue
            try:
                yield from self._put_back(name, before, aside, data, patience)
            except (OSError, CannotPutBack, SandboxUnavailable) as error:
                lost[name] = os_detail(error) if isinstance(error, OSError) else ""

    def _no_data(self, data: list[str], patience: Patience) -> Iterator[tuple[str, Item]]:
        """What is only told of, but is no file any more: git would wait for a pipe for ever."""
        for name, was in self._told_only.items():
            now = self._take(name, was, patience)
            if is_same(was, now):
                continue
            if isinstance(now, File | Missing):
                data.append(name)
            else:
                yield name, was

    def _not_there_before(self, lost: dict[str, str], patience: Patience) -> Iterator[tuple[str, Item]]:
        """Directories of git, and links that it would write through: each is put back before the next is found."""
        among = Links(self._folder, patience, self.past.seen, is_after=True)
        is_cut = False
        for paths in (strays(self.layout, self._folder, patience), links(self.layout, among)):
            try:
                for path in paths:
                    if path not in self.past.items:
                        yield path, MISSING
            except SandboxUnavailable as error:
                lost["all of it"] = error.detail
                is_cut = True
        self.is_cut = is_cut
        if not is_cut:
            self.past = self.past._replace(seen=among.seen)

    def _told(self, what: str, names: list[str], *, is_fault: bool = True) -> Iterator[Sentence]:
        if names:
            which = _listed(sorted(names)) if self.kind.is_git and _ALL_OF_IT not in names else "it"
            place = quoted(self.path)
            text = f"{place} is protected: what was done to {which} while the command ran was {what}"
            yield Sentence(text, is_fault)

    def _put_back(self, name: str, before: Item, aside: Aside, data: list[str], patience: Patience) -> list[str]:
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
            is_moved = before == MISSING and not self.kind.is_vacant
            budget = Budget(patience, entries=0, content_bytes=0) if is_moved else _budget(patience)
            now = take(last, folder, budget, opens=True)
            if self.kind.is_git and last == "info" and (alike := _with_list_of(before, now)) is not None:
                data.append(os.path.join(name, _LIST_OF_REFS))
                now = alike
            if last == "HEAD" and isinstance(now, File) and not is_moved and _HEAD.fullmatch(now.content or b""):
                return []
            if last in BEGUN and now == MISSING and before != MISSING:
                raise CannotPutBack(name)  # it may have ended, and with it there again its commits would be undone
            if self.kind.is_vacant and isinstance(now, Folder) and now.is_whole:
                return self._emptied(now, aside)
            changed = put_back(last, before, now, folder=folder, aside=aside)
            return [os.path.join(way, each) for each in changed]

    def _emptied(self, now: Folder, aside: Aside) -> list[str]:
        """Let a `.git` be empty. It may be that of another server, which needs it for its own commands."""
        name = os.path.basename(self.path)
        with ExitStack() as held_open:
            entered(name, held_open, self._parent)
            if now.entries:
                aside.move_contents(name, now.entries, self._parent)
            try:
                if (vacancy := Vacancy.taken(self.path, self._parent)) is not None:
                    vacancy.leave()
            except SandboxUnavailable:
                pass  # somebody else keeps it, which is nothing that the command did
        return [name] if now.entries else []

    def _take(self, name: str, known: Item, patience: Patience) -> Item:
        return _taken(name, self._folder, known, _budget(patience))


def _listed(names: Iterable[str]) -> str:
    named = list(names)
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + more


def _with_list_of(before: Item, now: Item) -> Folder | None:
    """What is there now, with the list of references that was there before; None: it has no other."""
    if not isinstance(before, Folder) or not isinstance(now, Folder):
        return None
    was, is_now = (each.entries.get(_LIST_OF_REFS, MISSING) for each in (before, now))
    is_data = isinstance(was, File | Missing) and isinstance(is_now, File | Missing)
    if not is_data or is_same(was, is_now):
        return None
    others = {name: item for name, item in now.entries.items() if name != _LIST_OF_REFS}
    return replace(now, entries=others if was == MISSING else {**others, _LIST_OF_REFS: was})


def _why(error: OSError) -> str:
    return "it was deleted" if isinstance(error, FileNotFoundError) else os_detail(error)


def _taken(name: str, folder: int, known: Item, budget: Budget) -> Item:
    """What is there, reached without following a link."""
    way, last = os.path.split(name)
    with ExitStack() as held_open:
        try:
            return take(last, opened_inside(way, held_open, folder), budget, known=known)
        except FileNotFoundError:
            return MISSING


def _cleared_way(way: str, held_open: ExitStack, folder: int, aside: Aside) -> int | None:
    """The directory at the end of a way; None if there is none. What is no directory is moved aside."""
    for each in filter(None, way.split("/")):
        try:
            folder = entered(each, held_open, folder)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            aside.move(each, folder)
            return None
    return folder


def _way(folders: tuple[str, ...], held_open: ExitStack) -> list[_Step]:
    """From the last of these directories to the first, which lies in all others."""
    way: list[_Step] = []
    for outer, inner in zip(folders[:0:-1], folders[-2::-1], strict=True):
        parent = way[-1].folder if way else _held(outer, held_open)
        name = os.path.basename(inner)
        way.append(_Step(parent, name, opened_in(name, held_open, parent), inner))
    return way


def _steps_to(names: Iterable[str], held_open: ExitStack, folder: int) -> Iterator[_Step]:
    """All directories that are there on the ways to these names, from a directory on, outer ones first."""
    ways = {way for name in names for way in along(os.path.dirname(name))}
    held = {"": folder}
    for way in sorted(ways, key=lambda way: (way.count("/"), way)):
        outer, name = os.path.split(way)
        if outer in held and found(name, held[outer]) is not None:
            held[way] = opened_in(name, held_open, held[outer])
            yield _Step(held[outer], name, held[way], way)


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
    with ExitStack() as held_open:
        found_in = entered("..", held_open, step.folder)
        name = _name_in(found_in, step.folder)
        if not os.path.samestat(os.lstat(name, dir_fd=found_in), ours):
            raise FileNotFoundError
        os.rename(name, step.name, src_dir_fd=found_in, dst_dir_fd=step.parent)
        if not os.path.samestat(os.lstat(step.name, dir_fd=step.parent), ours):
            os.rename(step.name, name, src_dir_fd=step.parent, dst_dir_fd=found_in)
            raise OSError("others move it")
    return True


def _name_in(parent: int, folder: int) -> str:
    """What a directory is called in the one that it is in."""
    try:
        return os.path.basename(os.readlink(f"/proc/self/fd/{folder}"))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    inode = os.fstat(folder).st_ino
    with ExitStack() as held_open, os.scandir(opened_in(".", held_open, parent)) as entries:
        for entry in entries:
            if entry.inode() == inode:
                return entry.name
    raise FileNotFoundError


def _held(path: str, held_open: ExitStack) -> int:
    descriptor = opened(path, os.O_RDONLY)
    held_open.callback(os.close, descriptor)
    return descriptor


def _is_anothers(name: str, folder: int) -> bool:
    status = found(name, folder)
    return status is not None and is_anothers(status, os.fstat(folder))


def _budget(patience: Patience) -> Budget:
    return Budget(patience, entries=_MOST_ENTRIES, content_bytes=_MOST_BYTES)
