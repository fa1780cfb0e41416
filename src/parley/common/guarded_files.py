"""Opening files that another party may have created, linked or swapped.

Every directory on the way is opened by its descriptor without following a link, links are resolved one by one, and
the opened file itself is checked: its type, its size, and its identity (device and inode) against what is hidden.
Uses the standard library alone. Does not know which paths are hidden, nor what is done with the content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Self

from parley.common.paths import is_below

__all__ = ["DirFds", "Identity", "LinkInTheWay", "identity_of", "read_named"]

_OPEN_AT_ONCE: Final = 128
"""Descriptors held at once. Beyond that the least recently used one is closed; its directory must be the same
when it is opened again."""

_MOST_LINKS: Final = 40
"""Links followed on the way to one file; the system follows no more either."""

_MOST_HIDDEN_FILES: Final = 20_000
"""Directory entries compared with a file that has several names. Beyond that, the file is refused."""

_LOOK: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Identity(NamedTuple):
    """What a file or directory is, whatever its name."""

    device: int
    inode: int


def identity_of(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino)


class LinkInTheWay(OSError):
    """A symbolic link stands where none may be followed."""

    def __init__(self, path: str) -> None:
        super().__init__(0, f"{path} is a symbolic link")
        self.filename = path


class DirFds:
    """Directories held by descriptor, by their absolute paths, and the files in them. Close it to release them."""

    def __init__(
        self,
        hidden: Sequence[str] = (),
        *,
        visible: str | None = None,
        expected: Mapping[str, Identity | None] | None = None,
    ) -> None:
        """Hide the content of the `hidden` files and directories, except below the directory `visible`.

        `expected` are directories that must be the same when they are opened; None: there must be none.
        """
        self._hidden_paths, self._visible_path = hidden, visible
        self._hidden: _Hidden | None = None
        self._expected = {} if expected is None else dict(expected)
        self._root = os.open("/", _LOOK)
        self._held: OrderedDict[str, int] = OrderedDict()
        self._seen: dict[str, Identity] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._root, *self._held.values()):
            os.close(descriptor)

    def seen(self, path: str) -> Identity | None:
        """The identity of a directory that was opened before; None: it was not there."""
        return self._seen.get(path)

    # --- directories ---------------------------------------------------------------------

    def open(self, path: str) -> int:
        """Return the descriptor of a directory, valid until the next call.

        Raises:
            LinkInTheWay: some part of the path is a symbolic link.
            OSError: it does not exist (`filename` says which part), is not a directory, or is not the expected one.
        """
        return self._reach(path, lambda parent, name, _: os.open(name, _LOOK, dir_fd=parent))

    def make(self, path: str, *, made: Callable[[str], None]) -> int:
        """Like `open`, and create what is missing; call `made` with each new directory.

        Raises:
            LinkInTheWay, OSError: as above, or it could not be created.
        """

        def open_or_make(parent: int, name: str, whole: str) -> int:
            try:
                return os.open(name, _LOOK, dir_fd=parent)
            except FileNotFoundError:
                os.mkdir(name, dir_fd=parent)
                made(whole)
                self._expected.pop(whole, None)
                return os.open(name, _LOOK, dir_fd=parent)

        return self._reach(path, open_or_make)

    def resolve(self, path: str, *, project: str | None = None) -> str:
        """Return the path with all links in it resolved. The last part need not exist.

        A link that lies in `project`, which is a resolved path itself, must not lead out of it.

        Raises:
            OSError: a directory on the way cannot be opened, there are too many links, or one leaves the project.
        """
        waiting, here, links, from_project = path.split("/")[::-1], "", 0, False
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            folder = self.open(here)
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            target = _link_target(part, folder)
            if target is None:
                here = f"{here}/{part}"
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            from_project = from_project or (project is not None and is_below(here or "/", project))
            here = "" if target.startswith("/") else here
            waiting += target.split("/")[::-1]
        here = here or "/"
        if from_project and project is not None and not is_below(here, project):
            raise OSError(0, "a symbolic link leads out of the project")
        return here

    def is_hidden(self, folder: str) -> bool:
        """Whether a directory that was opened is hidden, or lies in one that is."""
        hidden, is_hidden, reached = self._known_hidden(), False, ""
        for part in folder.split("/"):
            reached = f"{reached}/{part}" if part else reached
            its = self._seen.get(reached)
            if its is not None:
                is_hidden = its != hidden.visible and (is_hidden or its in hidden.identities)
        return is_hidden

    def _reach(self, path: str, enter: Callable[[int, str, str], int]) -> int:
        reached, missing = path, list[str]()
        while reached.strip("/") and reached not in self._held:
            reached, _, name = reached.rpartition("/")
            missing.append(name)
        folder = self._held.get(reached, self._root)
        if reached in self._held:
            self._held.move_to_end(reached)
        while missing:
            name = missing.pop()
            reached = f"{reached}/{name}"
            try:
                folder = self._hold(reached, enter(folder, name, reached))
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(name, folder):
                    raise LinkInTheWay(reached) from None
                raise OSError(error.errno, error.strerror, reached) from None
        return folder

    def _hold(self, path: str, descriptor: int) -> int:
        its = identity_of(os.fstat(descriptor))
        if self._seen.setdefault(path, its) != its or self._expected.get(path, its) != its:
            os.close(descriptor)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        self._held[path] = descriptor
        if len(self._held) > _OPEN_AT_ONCE:
            os.close(self._held.popitem(last=False)[1])
        return descriptor

    # --- files ---------------------------------------------------------------------------

    def read(self, path: str, *, limit: int) -> bytes:
        """Return at most `limit` bytes of a regular file. No link in the path is followed.

        Raises:
            OSError: it does not exist, is a link or something else than a regular file, is hidden, or cannot be
                read, at all or now.
        """
        with self._opened(path) as (file, size):
            return _read_now(file, min(limit, size))

    def read_whole(self, path: str, *, at_most: int) -> bytes | None:
        """Return the content of a regular file; None: it is larger, grows meanwhile, or is not a regular file.

        Raises:
            OSError: it does not exist, is a link, is hidden, or cannot be read.
        """
        try:
            with self._opened(path) as (file, size):
                if size > at_most:
                    return None
                content = _read_now(file, size + 1)
        except _NotRegular:
            return None
        return content if len(content) <= size else None

    def _opened(self, path: str) -> _OpenFile:
        folder, _, name = path.rpartition("/")
        inside = self.open(folder)
        try:
            found = os.stat(name, dir_fd=inside, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                raise LinkInTheWay(path)
            if not stat.S_ISREG(found.st_mode):
                raise _NotRegular(found)  # opening a device can have an effect of its own
            descriptor = os.open(name, _READ, dir_fd=inside)
        except ValueError:
            raise OSError(0, _NO_PATH) from None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or _is_of_kernel(found):
                raise _NotRegular(found)
            if self.is_hidden(folder) or self._known_hidden().has(found):
                raise OSError(0, "may not be read")
        except BaseException:
            os.close(descriptor)
            raise
        return _OpenFile(descriptor, found.st_size)

    def _known_hidden(self) -> _Hidden:
        if self._hidden is None:
            self._hidden = _Hidden(self._hidden_paths, self._visible_path)
        return self._hidden


def read_named(path: str, *, cwd: str, limit: int, hidden: Sequence[str], own: str | None = None) -> bytes:
    """Return at most `limit` bytes of a regular file that a client or the model named, relative to `cwd`.

    It may lie anywhere except in what is `hidden`. A link in the project, which is `cwd`, must not lead out of it.
    A file in the directory `own`, which is hidden, is read if the path names it there: no link leads to it.

    Raises:
        OSError: there is no such file, or it may not or cannot be read.
    """
    named = os.path.join(cwd, path)
    with DirFds() as folders:
        try:
            project = folders.resolve(cwd)
        except OSError:
            project = None  # a project that does not exist has no links
        place = folders.resolve(named, project=project)
        is_own = own is not None and _is_named_in(own, named, place, folders)
    with DirFds(hidden, visible=own if is_own else None) as folders:
        return folders.read(place, limit=limit)


def _is_named_in(folder: str, path: str, place: str, folders: DirFds) -> bool:
    """Whether a path that leads to `place` names it in the folder, without a link on the way from there."""
    folder, path = os.path.normpath(folder), os.path.normpath(path)
    try:
        return is_below(path, folder) and place == folders.resolve(folder) + path[len(folder) :]
    except OSError:
        return False


_NO_PATH: Final = "not the path of a file"
"""Reason for a name that no file can have, because of a NUL or an unpaired surrogate in it."""


class _NotRegular(OSError):
    def __init__(self, found: os.stat_result) -> None:
        is_folder = stat.S_ISDIR(found.st_mode)
        super().__init__(*((errno.EISDIR, os.strerror(errno.EISDIR)) if is_folder else (0, "not a regular file")))


class _OpenFile:
    """A descriptor with the size that the file had when it was opened."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size = descriptor, size

    def __enter__(self) -> tuple[int, int]:
        return self._descriptor, self._size

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class _Hidden:
    """The hidden files and directories, by their identities when this was made."""

    def __init__(self, paths: Sequence[str], visible: str | None) -> None:
        self._paths = {identity_of(its): path for path in paths if (its := _status(path)) is not None}
        self.identities = frozenset(self._paths)
        status = None if visible is None else _status(visible)
        self.visible = None if status is None else identity_of(status)
        self._is_too_much = False
        self._files: frozenset[Identity] | None = None
        """Everything in hidden directories, collected on first use; empty if there is too much."""

    def has(self, found: os.stat_result) -> bool:
        """Return whether a file is hidden, by this or another name, or there is too much to compare it with."""
        its = identity_of(found)
        if its in self.identities:
            return True
        if found.st_nlink < 2:
            return False
        if self._files is None:
            folders = (path for identity, path in self._paths.items() if identity != self.visible)
            entries = (entry for folder in folders for entry in self._below(folder))
            found_there = list(islice(entries, _MOST_HIDDEN_FILES + 1))
            self._is_too_much = len(found_there) > _MOST_HIDDEN_FILES
            self._files = frozenset(() if self._is_too_much else found_there)
        return self._is_too_much or its in self._files

    def _below(self, folder: str) -> Iterator[Identity]:
        """Yield the identities of everything in a directory, at any depth; nothing if it is not a directory."""
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        # On overlayfs a file can have another device than its directory.
                        its = identity_of(entry.stat(follow_symlinks=False))
                        if its == self.visible:
                            continue
                        yield its
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
            except OSError:
                continue  # not a directory, removed meanwhile, or not readable for the server either


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _is_of_kernel(found: os.stat_result) -> bool:
    """Whether a file is one of /proc, where the server's environment and open files can be read."""
    proc = _status("/proc")
    return proc is not None and proc.st_ino == _PROC_ROOT and proc.st_dev == found.st_dev


_PROC_ROOT: Final = 1
"""The inode of the root of every /proc."""


def _link_target(name: str, folder: int) -> str | None:
    """Where a link leads; None if there is no link of that name."""
    try:
        return os.readlink(name, dir_fd=folder)
    except ValueError:
        raise OSError(0, _NO_PATH) from None
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read_now(descriptor: int, size: int) -> bytes:
    """Read up to `size` bytes without waiting for more."""
    pieces: list[bytes] = []
    while size > 0 and (piece := os.read(descriptor, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
