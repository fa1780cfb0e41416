"""Files and directories as values: taken before a command, compared after it, and put back.

What is looked at may be hostile by then. No link is followed, nothing is opened but regular files,
and neither names nor bytes are taken without limit.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from contextlib import ExitStack
from threading import Event
from typing import Final

from msgspec import Struct

from parley.sandbox.descriptors import change_mode, entered, opened_up, reached

__all__ = [
    "MISSING",
    "MOVED_ASIDE",
    "SETTLED_NANOSECONDS",
    "Aside",
    "Budget",
    "CannotPutBack",
    "File",
    "Folder",
    "Item",
    "Link",
    "Missing",
    "Other",
    "Patience",
    "is_same",
    "is_whole",
    "put_back",
    "take",
]

MOVED_ASIDE: Final = ".refused-"
"""How the name of what was moved aside begins. Nobody looks for it."""

_DEEPEST: Final = 16
"""Directories within each other: deeper than any that git or an agent makes."""

_LONGEST_NAME: Final = 255
"""Bytes; file systems take no more."""

_LOOKING_SECONDS: Final = 10.0
"""For all that is watched at one place. The largest repository that is watched takes one or two on a disk."""

SETTLED_NANOSECONDS: Final = 2_000_000_000
"""The coarsest times that file systems keep are those of whole seconds, or two."""

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_FOLDER: Final = _OPEN | os.O_DIRECTORY
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Missing(Struct, frozen=True):
    """Nothing is there."""


class File(Struct, frozen=True, kw_only=True):
    mode: int
    content: bytes | None
    """None: it cannot be read, or is too much to be kept."""
    identity: tuple[int, ...]
    """What the system changes with the content, whatever the command does about it."""
    names: int
    """How many it has: whoever writes to one of them writes to all."""
    is_settled: bool
    """Its last change was long enough ago for the next one to show in its identity."""

    @property
    def can_be_trusted(self) -> bool:
        """Whether a file of the same identity has the same content, and need not be read."""
        return self.is_settled and self.content is not None

    def has_gained_names(self, before: File) -> bool:
        return self.names > before.names


class Link(Struct, frozen=True):
    target: str


class Folder(Struct, frozen=True, kw_only=True):
    mode: int
    entries: dict[str, Item]
    is_whole: bool
    """Otherwise there is more in it than was looked at."""


class Other(Struct, frozen=True):
    """A pipe, a socket or a device."""

    kind: int


Item = Missing | File | Link | Folder | Other

MISSING: Final = Missing()


class Patience:
    """How long something may still be looked at: until that has taken too long, or nobody wants it any more."""

    def __init__(self, stopped: Event | None = None) -> None:
        self._ends_at = time.monotonic() + _LOOKING_SECONDS
        self._stopped = stopped

    @property
    def is_over(self) -> bool:
        is_stopped = self._stopped is not None and self._stopped.is_set()
        return is_stopped or time.monotonic() > self._ends_at


class Budget:
    """How much may still be looked at."""

    def __init__(self, patience: Patience, *, entries: int, content_bytes: int) -> None:
        self._patience = patience
        self._entries = entries
        self._bytes = content_bytes

    def allows_entry(self) -> bool:
        return self.allows(1)

    def allows(self, entries: int) -> bool:
        self._entries -= entries
        return not self.is_over

    @property
    def is_over(self) -> bool:
        return self._entries < 0 or self._patience.is_over

    @property
    def content_bytes(self) -> int:
        """How much of contents may still be read."""
        return self._bytes

    def allows_content(self, size: int) -> bool:
        if size > self._bytes:
            return False
        self._bytes -= size
        return True


class CannotPutBack(Exception):
    """It is not as it was, and cannot be made so."""


class Aside:
    """A directory to which things are moved that are in the place of others, under names that nobody looks for.

    Nothing is deleted: removing a directory could take for ever, and it may be somebody's work.
    """

    def __init__(self, folder: int) -> None:
        self.folder = folder
        self.names: list[str] = []
        """What was moved there."""

    def move(self, name: str, folder: int) -> None:
        """Move something there out of the directory of a descriptor."""
        unused = _unused_name(name)
        _move(name, unused, source=folder, target=self.folder)
        self.names.append(unused)

    def move_contents(self, name: str, entries: Iterable[str], folder: int) -> None:
        """Move these out of a directory, which itself stays where it is, into a new one there.

        Raises:
            OSError: one of them cannot be moved; all others were.
        """
        unused = _unused_name(name)
        os.mkdir(unused, dir_fd=self.folder)
        self.names.append(unused)
        failed: OSError | None = None
        with ExitStack() as held_open:
            source, target = entered(name, held_open, folder), entered(unused, held_open, self.folder)
            for each in entries:
                try:
                    _move(each, each, source=source, target=target)
                except OSError as error:
                    failed = error
        if failed is not None:
            raise failed


def _move(name: str, other: str, *, source: int, target: int) -> None:
    with reached(name, source) as descriptor, opened_up(descriptor):
        os.rename(name, other, src_dir_fd=source, dst_dir_fd=target)


# --- looking -----------------------------------------------------------------------------


def take(
    name: str, folder: int, budget: Budget, *, known: Item = MISSING, opens: bool = False, level: int = 0
) -> Item:
    """What is there under a name, in the directory of a descriptor.

    What has not changed since it was `known` is not read again: no command may have run since. On some file
    systems, of what is written by way of memory the times do not tell. With `opens`, directories that were shut
    are opened for as long as that takes.
    """
    try:
        found = os.lstat(name, dir_fd=folder)
        if stat.S_ISREG(found.st_mode):
            return _file(name, found, folder, budget, known)
        if stat.S_ISLNK(found.st_mode):
            return Link(os.readlink(name, dir_fd=folder))
        if stat.S_ISDIR(found.st_mode):
            if not opens:
                return _folder(name, found, folder, budget, known, opens, level)
            with reached(name, folder) as descriptor, opened_up(descriptor):
                return _folder(name, found, folder, budget, known, opens, level)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    return Other(stat.S_IFMT(found.st_mode))


def _file(name: str, found: os.stat_result, folder: int, budget: Budget, known: Item) -> File:
    if isinstance(known, File) and known.can_be_trusted and known.identity == _identity(found):
        return known if budget.allows_content(found.st_size) else _as_item(found, None)
    try:
        descriptor = os.open(name, _OPEN, dir_fd=folder)
    except PermissionError:
        return _as_item(found, None)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not budget.allows_content(found.st_size):
            return _as_item(found, None)
        content = os.read(descriptor, found.st_size)
        while len(content) < found.st_size and (piece := os.read(descriptor, found.st_size - len(content))):
            content += piece
    finally:
        os.close(descriptor)
    return _as_item(found, content)


def _as_item(found: os.stat_result, content: bytes | None) -> File:
    return File(
        mode=stat.S_IMODE(found.st_mode),
        content=content,
        identity=_identity(found),
        names=found.st_nlink,
        is_settled=time.time_ns() - found.st_ctime_ns > SETTLED_NANOSECONDS,
    )


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _folder(
    name: str, found: os.stat_result, folder: int, budget: Budget, known: Item, opens: bool, level: int
) -> Folder:
    before = known.entries if isinstance(known, Folder) else {}
    inside: dict[str, Item] = {}
    is_whole = level < _DEEPEST
    mode = stat.S_IMODE(found.st_mode)
    try:
        descriptor = os.open(name, _OPEN_FOLDER, dir_fd=folder)
    except PermissionError:
        return Folder(mode=mode, entries={}, is_whole=False)
    try:
        if is_whole:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if not budget.allows_entry():
                        is_whole = False
                        break
                    inside[entry.name] = take(
                        entry.name,
                        descriptor,
                        budget,
                        known=before.get(entry.name, MISSING),
                        opens=opens,
                        level=level + 1,
                    )
    finally:
        os.close(descriptor)
    return Folder(mode=mode, entries=inside, is_whole=is_whole)


# --- comparing and putting back ----------------------------------------------------------


def is_same(before: Item, now: Item) -> bool:
    """Whether nothing has changed that anybody could tell."""
    if isinstance(before, File) and isinstance(now, File):
        if before.content is None or now.content is None:
            return before.identity == now.identity
        return (before.mode, before.content) == (now.mode, now.content) and not now.has_gained_names(before)
    if isinstance(before, Folder) and isinstance(now, Folder):
        return (before.mode, before.is_whole, before.entries.keys()) == (
            now.mode,
            now.is_whole,
            now.entries.keys(),
        ) and all(is_same(item, now.entries[name]) for name, item in before.entries.items())
    return before == now


def is_whole(item: Item) -> bool:
    """Whether all of it was looked at, and can be made again."""
    match item:
        case File(content=content):
            return content is not None
        case Folder(entries=inside, is_whole=whole):
            return whole and all(map(is_whole, inside.values()))
        case _:
            return True


def put_back(name: str, before: Item, now: Item, *, folder: int, aside: Aside) -> list[str]:
    """Make what is there under a name what it was before; returns what had been changed, by its path from here.

    Files and directories that were not there before are moved aside, whether that can be done or not.

    Raises:
        OSError, CannotPutBack: something stays changed.
    """
    if is_same(before, now):
        return []
    if isinstance(before, Folder) and isinstance(now, Folder) and (now.is_whole or not before.is_whole):
        return _put_back_inside(name, before, now, folder=folder, aside=aside)
    if isinstance(before, File) and isinstance(now, File) and _differ_in_mode(before, now):
        with reached(name, folder) as descriptor:
            change_mode(descriptor, before.mode)
        return [name]
    if isinstance(now, Folder | File):
        aside.move(name, folder)
    elif not isinstance(now, Missing):
        os.unlink(name, dir_fd=folder)
    _make(name, before, folder=folder)
    return [name]


def _differ_in_mode(before: File, now: File) -> bool:
    """Whether that is all."""
    return before.content == now.content and not now.has_gained_names(before)


def _put_back_inside(name: str, before: Folder, now: Folder, *, folder: int, aside: Aside) -> list[str]:
    changed: list[str] = []
    failed: OSError | CannotPutBack | None = None
    with reached(name, folder) as descriptor:
        with opened_up(descriptor):
            # Of a directory that was too large, what was not looked at is nobody's business.
            names = before.entries.keys() | (now.entries.keys() if before.is_whole else ())
            for each in sorted(names):
                was, is_now = before.entries.get(each, MISSING), now.entries.get(each, MISSING)
                try:
                    inside = put_back(each, was, is_now, folder=descriptor, aside=aside)
                except (OSError, CannotPutBack) as error:
                    failed = CannotPutBack(f"{name}/{each}") if isinstance(error, CannotPutBack) else error
                else:
                    changed += [f"{name}/{path}" for path in inside]
        if before.mode != now.mode:
            change_mode(descriptor, before.mode)
            changed.append(name)
    if failed is not None:
        raise failed
    return changed


def _make(name: str, item: Item, *, folder: int) -> None:
    """Make something anew where nothing is."""
    match item:
        case File(mode=mode, content=bytes(content)):
            with open(os.open(name, _CREATE, mode=0o600, dir_fd=folder), "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
        case Link(target):
            os.symlink(target, name, dir_fd=folder)
        case Folder(mode=mode, entries=inside):
            os.mkdir(name, mode=0o700, dir_fd=folder)
            descriptor = os.open(name, _OPEN_FOLDER, dir_fd=folder)
            try:
                failed: OSError | CannotPutBack | None = None
                for each, its in inside.items():
                    try:
                        _make(each, its, folder=descriptor)
                    except (OSError, CannotPutBack) as error:
                        failed = error
                os.fchmod(descriptor, mode)
                if failed is not None:
                    raise failed
            finally:
                os.close(descriptor)
        case Missing():
            pass
        case File() | Other():
            raise CannotPutBack(name)


def _unused_name(name: str) -> str:
    """What something is called that was moved aside."""
    return os.fsdecode(os.fsencode(f"{MOVED_ASIDE}{os.urandom(4).hex()}-{name}")[:_LONGEST_NAME])
