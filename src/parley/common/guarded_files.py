"""Opens files that an untrusted party may have created, linked or swapped.

Each directory of a path is opened by descriptor without following symbolic links. `DirFds.resolve` resolves
symbolic links one by one. After a file has been opened, its type, its size and its identity (device and inode) are
checked. The caller supplies the hidden paths, which must not be read. Opening a file with the identity of a hidden
file raises an error. Opening a path below a hidden directory raises the same error, whether or not a file exists at
this path.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Self

from parley.common.files import INVALID_PATH
from parley.common.paths import is_below

__all__ = ["DirFds", "HiddenPath", "Identity", "UnexpectedSymlink", "identity_of", "read_named"]

_OPEN_AT_ONCE: Final = 128
"""The maximum number of directories that one `DirFds` holds open. When the maximum is reached, the least recently
used directory is closed. A directory that is opened again must have the same identity as before.
"""

_MAX_LINKS: Final = 40
"""The maximum number of symbolic links that are followed to find one file. The Linux kernel has the same limit."""

_MAX_HIDDEN_FILES: Final = 20_000
"""The maximum number of hidden files that are compared with a file that has several hard links. If the hidden
directories contain more files, the file with several hard links counts as hidden.
"""

_LOOK: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Identity(NamedTuple):
    """The device and inode of a file or directory. All hard links to a file have the same identity."""

    device: int
    inode: int


def identity_of(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino)


class UnexpectedSymlink(OSError):
    """Raised for a symbolic link in a path that must not contain one."""

    def __init__(self, path: str) -> None:
        super().__init__(0, f"{path} is a symbolic link")
        self.filename = path


class HiddenPath(OSError):
    """Raised for a hidden file or directory, and for each path below a hidden directory, even if no file exists
    there.
    """

    def __init__(self) -> None:
        super().__init__(0, "access is not allowed")


class DirFds:
    """A cache of open directory descriptors, keyed by absolute path, with methods that read files in these
    directories.

    The cache is a context manager, which closes the descriptors at the end of the `with` block.
    """

    def __init__(
        self,
        hidden: Sequence[str] = (),
        *,
        visible: str | None = None,
        expected: Mapping[str, Identity | None] | None = None,
    ) -> None:
        """Create a cache. `hidden` lists the paths of files and directories that the cache does not open. The
        directory `visible` can be opened even if it is below a hidden directory.

        `expected` maps directories to the identities that they must have when they are opened. If `expected` maps a
        directory to None, the directory must not exist.
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
        """Return the identity of a directory at the time when it was first opened; None if it has not been
        opened.
        """
        return self._seen.get(path)

    # --- directories ---------------------------------------------------------------------

    def open(self, path: str) -> int:
        """Return the descriptor of a directory. The descriptor is valid until the next call of any method.

        Raises:
            HiddenPath: the directory is hidden, or the path leads through a hidden directory.
            UnexpectedSymlink: a part of the path is a symbolic link.
            OSError: the directory does not exist (`filename` names the missing part), is not a directory, or does
                not have the expected identity.
        """
        descriptor = self._reach(path, _enter)
        if self._is_hidden(path):
            raise HiddenPath
        return descriptor

    def make(self, path: str, *, made: Callable[[str], None]) -> int:
        """Open a directory as `open` does, and return its descriptor. Create missing directories. `made` is called
        with the path of each new directory.

        Raises:
            UnexpectedSymlink, OSError: as for `open`, or a directory could not be created.
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
        """Return the path with all symbolic links resolved. The last part need not exist.

        A symbolic link inside the directory `project` must not lead out of that directory. `project` is a resolved
        path.

        Raises:
            HiddenPath: the path leads through a hidden directory.
            OSError: a directory cannot be opened, there are too many symbolic links, or a symbolic link leads out
                of the project.
        """
        waiting, here, links, from_project = path.split("/")[::-1], "", 0, False
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            folder = self._reach(here, _enter)
            if part == "..":
                parent = here.rpartition("/")[0]
                if self._is_hidden(here) and self._is_hidden(parent):
                    raise HiddenPath  # a missing directory raises the same error, so its existence stays hidden
                here = parent
                continue
            target = None if self._is_hidden(here) else _link_target(part, folder)
            if target is None:
                here = f"{here}/{part}"
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            from_project = from_project or (project is not None and is_below(here or "/", project))
            here = "" if target.startswith("/") else here
            waiting += target.split("/")[::-1]
        if self._is_hidden(here.rpartition("/")[0]):
            self.open(here)  # raises `HiddenPath`, unless this is the directory `visible`
        here = here or "/"
        if from_project and project is not None and not is_below(here, project):
            raise OSError(0, "a symbolic link leads out of the project")
        return here

    def _is_hidden(self, folder: str) -> bool:
        """Return whether an opened directory is hidden or lies in a hidden directory."""
        hidden, is_hidden, reached = self._known_hidden(), False, ""
        if not hidden.identities:
            return False
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
            parent, reached = reached, f"{reached}/{name}"
            try:
                folder = self._hold(reached, enter(folder, name, reached))
            except (OSError, ValueError) as error:
                if self._is_hidden(parent):
                    raise HiddenPath from None
                if isinstance(error, ValueError):
                    raise OSError(0, INVALID_PATH) from None
                if error.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(name, folder):
                    raise UnexpectedSymlink(reached) from None
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
        """Return at most `limit` bytes of a regular file. No symbolic link in the path is followed.

        Raises:
            HiddenPath: the file is hidden, or its path leads through a hidden directory.
            OSError: the file does not exist, is not a regular file, or cannot be read without blocking.
        """
        with self._opened(path) as (file, size):
            return _read_now(file, min(limit, size))

    def read_whole(self, path: str, *, at_most: int) -> bytes | None:
        """Return the content of a regular file. Return None if the file is larger than `at_most` bytes, grows while
        it is read, or is not regular.

        Raises:
            HiddenPath: the file is hidden, or its path leads through a hidden directory.
            OSError: the file does not exist, is a symbolic link, or cannot be read.
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
        inside, hidden = self.open(folder), self._known_hidden()
        try:
            found = os.stat(name, dir_fd=inside, follow_symlinks=False)
            if identity_of(found) in hidden.identities:
                raise HiddenPath
            if stat.S_ISLNK(found.st_mode):
                raise UnexpectedSymlink(path)
            if not stat.S_ISREG(found.st_mode):
                raise _NotRegular(found)  # do not open it: opening a device can have side effects
            descriptor = os.open(name, _READ, dir_fd=inside)
        except ValueError:
            raise OSError(0, INVALID_PATH) from None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or _is_in_proc(found):
                raise _NotRegular(found)
            if hidden.has(found):
                raise HiddenPath
        except BaseException:
            os.close(descriptor)
            raise
        return _OpenFile(descriptor, found.st_size)

    def _known_hidden(self) -> _Hidden:
        if self._hidden is None:
            self._hidden = _Hidden(self._hidden_paths, self._visible_path)
        return self._hidden


def read_named(path: str, *, cwd: str, limit: int, hidden: Sequence[str], own: str | None = None) -> bytes:
    """Return at most `limit` bytes of a regular file that a client or the model named. `path` is absolute or
    relative to `cwd`.

    Files at or below the `hidden` paths cannot be read, with one exception: a file in the hidden directory `own`
    can be read if its path contains no symbolic link. A symbolic link below `cwd` must not lead out of `cwd`.

    Raises:
        HiddenPath: the file is hidden, or its path leads through a hidden directory.
        OSError: the file does not exist, or cannot be read.
    """
    named = os.path.join(cwd, path)
    may_be_own = own is not None and is_below(os.path.normpath(named), os.path.normpath(own))
    with DirFds(hidden, visible=own if may_be_own else None) as folders:
        try:
            project = folders.resolve(cwd)
        except OSError:
            project = None  # the directory does not exist or is hidden, so no symbolic link in it is followed
        place = folders.resolve(named, project=project)
        if own is None or not may_be_own or _is_named_in(own, named, place, folders):
            return folders.read(place, limit=limit)
    with DirFds(hidden) as folders:
        return folders.read(place, limit=limit)


def _is_named_in(folder: str, path: str, place: str, folders: DirFds) -> bool:
    """Return whether the part of `path` after `folder` contains no symbolic link. `path` lies below `folder`, and
    `place` is `path` with all symbolic links resolved. `folders` is the cache of open directories, which is used to
    resolve the symbolic links in `folder`. Return False if `folder` cannot be resolved.
    """
    folder, path = os.path.normpath(folder), os.path.normpath(path)
    try:
        return place == folders.resolve(folder) + path[len(folder) :]
    except OSError:
        return False


class _NotRegular(OSError):
    def __init__(self, found: os.stat_result) -> None:
        is_folder = stat.S_ISDIR(found.st_mode)
        super().__init__(*((errno.EISDIR, os.strerror(errno.EISDIR)) if is_folder else (0, "not a regular file")))


class _OpenFile:
    """A context manager that holds an open descriptor and the size that the file had when it was opened."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size = descriptor, size

    def __enter__(self) -> tuple[int, int]:
        return self._descriptor, self._size

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class _Hidden:
    """The identities of the hidden files and directories at the time when this object was created."""

    def __init__(self, paths: Sequence[str], visible: str | None) -> None:
        self._paths = {identity_of(its): path for path in paths if (its := _status(path)) is not None}
        self.identities = frozenset(self._paths)
        status = None if visible is None else _status(visible)
        self.visible = None if status is None else identity_of(status)
        self._too_many = False
        self._files: frozenset[Identity] | None = None
        """The identities of all entries of hidden directories; empty if there are too many entries, and None until
        they are first needed.
        """

    def has(self, found: os.stat_result) -> bool:
        """Return whether the file with the status `found` is hidden, or is a hard link to a hidden file.

        If there are too many hidden entries for a comparison, return True for every file with several hard links.
        """
        its = identity_of(found)
        if its in self.identities:
            return True
        if found.st_nlink < 2:
            return False
        if self._files is None:
            folders = (path for identity, path in self._paths.items() if identity != self.visible)
            entries = (entry for folder in folders for entry in self._below(folder))
            found_there = list(islice(entries, _MAX_HIDDEN_FILES + 1))
            self._too_many = len(found_there) > _MAX_HIDDEN_FILES
            self._files = frozenset(() if self._too_many else found_there)
        return self._too_many or its in self._files

    def _below(self, folder: str) -> Iterator[Identity]:
        """Yield the identities of all entries of a directory, at any depth. Yield nothing if `folder` is not a
        directory.
        """
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        # On overlayfs the device of a file can differ from the device of its directory.
                        its = identity_of(entry.stat(follow_symlinks=False))
                        if its == self.visible:
                            continue
                        yield its
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
            except OSError:
                continue  # the entry is not a directory, was removed in the meantime, or cannot be read


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _is_in_proc(found: os.stat_result) -> bool:
    """Return whether a file is in /proc, which exposes the server's environment and open files."""
    proc = _status("/proc")
    return proc is not None and proc.st_ino == _PROC_ROOT and proc.st_dev == found.st_dev


_PROC_ROOT: Final = 1
"""The inode of the root directory of every procfs, by which a procfs is recognised."""


def _link_target(name: str, folder: int) -> str | None:
    """Return the target of the symbolic link `name` in the directory with the descriptor `folder`; None if `name`
    does not exist or is not a symbolic link.
    """
    try:
        return os.readlink(name, dir_fd=folder)
    except ValueError:
        raise OSError(0, INVALID_PATH) from None
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _enter(parent: int, name: str, _: str) -> int:
    return os.open(name, _LOOK, dir_fd=parent)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read_now(descriptor: int, size: int) -> bytes:
    """Read `size` bytes and return them. Return fewer bytes if the file ends earlier."""
    pieces: list[bytes] = []
    while size > 0 and (piece := os.read(descriptor, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
