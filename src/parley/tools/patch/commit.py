"""Writes either all changes of a plan or none.

New contents are written to temporary files beside the old files. Next, every file is compared with the plan once
more. Finally, the files are renamed one by one. If a rename fails, the earlier renames are undone. If the process
is killed between two renames, every file is complete, with either its old or its new content.

Files are opened relative to the descriptors of their directories, so that they are written to the verified
directories. This module does not check permissions, because `plan` has already checked that no path is protected.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from parley.common.guarded_files import DirFds, Identity
from parley.common.os_errors import os_detail
from parley.tools.errors import PatchChanged, PatchNotApplied
from parley.tools.patch.limits import MAX_FILE_BYTES
from parley.tools.patch.plan import Change

__all__ = ["System", "commit"]

_WRITING: Final = threading.Lock()
"""A lock that is held while a patch is applied, because this process applies one patch at a time."""

_CHANGED: Final = "it changed after the patch was verified"

_CANNOT_LINK: Final = frozenset(
    {errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EXDEV}
)
"""Error numbers that mean that the file system has no hard links, or does not allow a hard link to the file."""

_SYNCED_FILES: Final = 64
"""The maximum number of replaced files that are synced to the disk. Each sync takes a few milliseconds. If a patch
replaces more files, none of them is synced.
"""

_GIVES_RIGHTS: Final = stat.S_ISUID | stat.S_ISGID
"""The setuid and setgid bits. A file loses these bits when a patch replaces it, as it would if the file were
written in place.
"""

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


_NOT_KEPT: Final = frozenset({"security.capability", "security.ima", "security.evm"})
"""Extended attributes that are not copied to the new file, because they belong to the old content: capabilities of
a program, and signatures.
"""


class System:
    """The system calls that change names in a directory, and `fsync`. Tests substitute this class."""

    def link(self, name: str, other: str, *, folder: int) -> None:
        """Create a hard link `other` to the file `name`. Both names are relative to the directory descriptor
        `folder`.

        Raises:
            FileExistsError: `other` exists.
        """
        os.link(name, other, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def rename(self, name: str, other: str, *, folder: int) -> None:
        """Rename the file `name` to `other`. If a file with the name `other` exists, replace it. Both names are
        relative to the directory descriptor `folder`.
        """
        os.rename(name, other, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, name: str, *, folder: int) -> None:
        os.unlink(name, dir_fd=folder)

    def rmdir(self, name: str, *, folder: int) -> None:
        os.rmdir(name, dir_fd=folder)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)


def commit(
    changes: Sequence[Change],
    *,
    expected: Mapping[str, Identity | None] | None = None,
    system: System | None = None,
) -> tuple[str, ...]:
    """Write all changes of a patch, or none. This process applies one patch at a time.

    `expected` maps directories to the identities that they must have. If `expected` maps a directory to None, the
    directory must not exist. `system` makes the system calls; tests pass a substitute. Return a message for each
    temporary file that could not be removed.

    Raises:
        PatchChanged: a file or directory has changed since it was verified; nothing was written.
        PatchNotApplied: a change failed. Either nothing was written, or the message names the files that could not
            be restored.
    """
    with _WRITING:
        try:
            opened = DirFds(expected=expected)
        except OSError as error:
            raise PatchNotApplied(f"Failed to write files: {os_detail(error)}") from error
        with opened as folders:
            work = _Commit(folders, System() if system is None else system)
            try:
                work.run(changes)
            except BaseException as error:
                stuck = work.roll_back()
                if stuck:
                    raise PatchNotApplied(f"{error}; {'; '.join(stuck)}") from error
                raise
            return tuple(work.clean_up())


# --- steps ------------------------------------------------------------------


class _Place(Struct, frozen=True):
    """A file name in an open directory."""

    folder: str
    name: str

    @classmethod
    def of(cls, path: str) -> _Place:
        folder, _, name = path.rpartition("/")
        return cls(folder, name)

    def temporary(self) -> _Place:
        """Return a `_Place` with a new random file name in the same directory, for a temporary file."""
        return _Place(self.folder, f".parley-patch-{os.urandom(8).hex()}")


class _Write(Struct, frozen=True):
    """A step of a commit that creates or replaces a file."""

    written: str
    """The path as written in the patch."""
    place: _Place
    like: _Place | None
    """The file whose owner and attributes the new file gets; None if the new file gets the default attributes."""
    before: bytes | None
    after: bytes
    mode: int | None
    mode_before: int | None

    @property
    def failure(self) -> str:
        return f"Failed to write file {self.written}"


class _Removal(Struct, frozen=True):
    """A step of a commit that removes a file."""

    written: str
    """The path as written in the patch."""
    place: _Place
    before: bytes

    @property
    def failure(self) -> str:
        return f"Failed to delete file {self.written}"


def _steps(changes: Sequence[Change]) -> tuple[list[_Write], list[_Removal]]:
    writes: list[_Write] = []
    removals: list[_Removal] = []
    for change in changes:
        place = _Place.of(change.path)
        is_other = change.before != change.after or change.given_up_mode is not None
        if change.after is not None and (change.move_to or is_other):
            like = None if change.before is None else place
            target, before = (_Place.of(change.move_to), None) if change.move_to else (place, change.before)
            mode_before = None if before is None else change.mode_before
            writes.append(_Write(change.written, target, like, before, change.after, change.mode, mode_before))
        if change.before is not None and (change.move_to or change.after is None):
            removals.append(_Removal(change.written, place, change.before))
    return writes, removals


class _Attributes(Struct, frozen=True):
    """The owner and the extended attributes of a file."""

    owner: tuple[int, int]
    extended: dict[str, bytes]


_Identity = tuple[int, int, int, int]
"""The device, inode, size and modification time of a file. If none of these values changes, the file is considered
unchanged.
"""


class _Undo(Struct, frozen=True):
    """The data that is needed to undo the change of one file."""

    step: Callable[[], None]
    """The function that restores the old state of the file."""
    written: str
    """The path as written in the patch."""
    old: _Place | None
    """The temporary file with the old content; None if the file is new."""


# --- carrying out steps ----------------------------------------------------------------------------


class _Commit:
    def __init__(self, folders: DirFds, system: System) -> None:
        self._folders, self._system = folders, system
        self._made: list[str] = []
        """Directories that this commit has created, outer ones first."""
        self._leftovers: dict[_Place, None] = {}
        """Temporary files that are removed at the end of the commit."""
        self._undo: list[_Undo] = []
        self._compared: dict[_Place, _Identity] = {}

    def run(self, changes: Sequence[Change]) -> None:
        writes, removals = _steps(changes)
        replaced = sum(write.before is not None for write in writes)
        prepared: list[_Place] = []
        for write in writes:
            with _reported_as(write.failure):
                prepared.append(self._prepare(write, to_disk=replaced <= _SYNCED_FILES))
        steps: list[_Write | _Removal] = [*writes, *removals]
        for step in steps:
            with _reported_as(step.failure):
                self._compare(step)
        # The new file is written before the old file is removed, so a moved file is never missing.
        for write, new in zip(writes, prepared, strict=True):
            with _reported_as(write.failure):
                if write.before is None:
                    self._add(write, new)
                else:
                    self._replace(write, new)
        for removal in removals:
            with _reported_as(removal.failure):
                self._remove(removal)

    def roll_back(self) -> list[str]:
        """Undo all steps. Return a message for each file that could not be restored or removed."""
        stuck: list[str] = []
        for undo in reversed(self._undo):
            try:
                undo.step()
            except OSError as error:
                where = ""
                if undo.old is not None:
                    self._leftovers.pop(undo.old, None)
                    where = f", its old content is in {undo.old.folder}/{undo.old.name}"
                stuck.append(f"{undo.written} could not be restored: {os_detail(error)}{where}")
        stuck += self.clean_up()
        for path in reversed(self._made):
            place = _Place.of(path)
            with suppress(OSError):  # another program has put a file there in the meantime
                self._system.rmdir(place.name, folder=self._folders.open(place.folder))
        return stuck

    def clean_up(self) -> list[str]:
        """Remove the temporary files. Return a message for each file that could not be removed."""
        left: list[str] = []
        for place in self._leftovers:
            try:
                self._system.unlink(place.name, folder=self._folders.open(place.folder))
            except FileNotFoundError:
                pass  # the file has already been removed
            except OSError as error:
                left.append(f"{place.folder}/{place.name} could not be removed: {os_detail(error)}")
        return left

    # --- before renaming ---------------------------------------------------------

    def _prepare(self, write: _Write, *, to_disk: bool) -> _Place:
        """Write the new content to a temporary file in the same directory, and return the place of this file. If
        `write` replaces a file and `to_disk` is True, sync the temporary file to the disk.
        """
        attributes = self._attributes(write.like) if write.like else None
        folder = self._folders.make(write.place.folder, made=self._made.append)
        new = write.place.temporary()
        # A file that replaces another is synced, so that a power failure does not lose both contents.
        self._create(new, folder, write.after, write.mode, attributes, to_disk=to_disk and write.before is not None)
        return new

    def _create(
        self,
        place: _Place,
        folder: int,
        content: bytes,
        mode: int | None,
        attributes: _Attributes | None,
        *,
        to_disk: bool,
    ) -> None:
        descriptor = os.open(place.name, _NEW, 0o666 if mode is None else 0o600, dir_fd=folder)
        self._leftovers[place] = None
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if attributes is not None:
                _set_owner(descriptor, attributes.owner)
            if mode is not None:
                os.fchmod(descriptor, mode & ~_GIVES_RIGHTS)
            for name, value in attributes.extended.items() if attributes else ():
                _set_extended(descriptor, name, value)
            if to_disk:
                self._system.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _attributes(self, place: _Place) -> _Attributes:
        folder = self._folders.open(place.folder)
        descriptor = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(descriptor)
            return _Attributes((found.st_uid, found.st_gid), _extended(descriptor))
        finally:
            os.close(descriptor)

    def _compare(self, step: _Write | _Removal) -> None:
        """Check that the file of a step has not changed since it was verified. Do nothing if the step creates a
        file.

        Raises:
            PatchChanged: the content or the permissions of the file have changed.
            OSError: the file cannot be read, or belongs to another user in a sticky directory.
        """
        if step.before is None:
            return
        folder, name = self._folders.open(step.place.folder), step.place.name
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = step.mode_before if isinstance(step, _Write) else None
        if mode is not None and mode != stat.S_IMODE(found.st_mode):
            raise PatchChanged(f"{step.failure}: {_CHANGED}")
        _refuse_sticky(folder, found)
        if self._folders.read_whole(f"{step.place.folder}/{name}", at_most=MAX_FILE_BYTES) != step.before:
            raise PatchChanged(f"{step.failure}: {_CHANGED}")
        self._compared[step.place] = _identity(found)

    # --- renaming --------------------------------------------------------------------

    def _replace(self, write: _Write, new: _Place) -> None:
        old = self._back_up(write)
        place = write.place
        folder = self._folders.open(place.folder)
        self._system.rename(new.name, place.name, folder=folder)
        self._leftovers.pop(new)

        def restore() -> None:
            self._system.rename(old.name, place.name, folder=self._folders.open(place.folder))
            self._leftovers.pop(old)

        self._undo.append(_Undo(restore, write.written, old))

    def _back_up(self, write: _Write) -> _Place:
        """Create a hard link to the file that `write` replaces, so that the change can be undone. If the file
        system does not allow a hard link, create a copy. Return the place of the hard link or copy.
        """
        old = write.place.temporary()
        folder = self._folders.open(write.place.folder)
        try:
            self._system.link(write.place.name, old.name, folder=folder)
            self._leftovers[old] = None
            checked_name = old.name
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            attributes = self._attributes(write.place)
            self._create(old, folder, write.before or b"", write.mode_before, attributes, to_disk=False)
            checked_name = write.place.name
        found = os.stat(checked_name, dir_fd=folder, follow_symlinks=False)
        if _identity(found) != self._compared[write.place]:
            raise PatchChanged(f"{write.failure}: {_CHANGED}")
        return old

    def _add(self, write: _Write, new: _Place) -> None:
        place = write.place
        folder = self._folders.open(place.folder)
        ours = os.stat(new.name, dir_fd=folder, follow_symlinks=False).st_ino
        self._give_name(new, place)

        def remove() -> None:
            folder = self._folders.open(place.folder)
            if os.stat(place.name, dir_fd=folder, follow_symlinks=False).st_ino == ours:
                self._system.unlink(place.name, folder=folder)

        self._undo.append(_Undo(remove, write.written, None))

    def _remove(self, removal: _Removal) -> None:
        place, old = removal.place, removal.place.temporary()
        folder = self._folders.open(place.folder)
        self._system.rename(place.name, old.name, folder=folder)
        self._leftovers[old] = None
        self._undo.append(_Undo(lambda: self._give_name(old, place), removal.written, old))
        found = os.stat(old.name, dir_fd=folder, follow_symlinks=False)
        if _identity(found) != self._compared[place]:
            raise PatchChanged(f"{removal.failure}: {_CHANGED}")

    def _give_name(self, place: _Place, target: _Place) -> None:
        """Give the temporary file `place` its final name `target`.

        Raises:
            FileExistsError: a file with the name `target` exists.
        """
        folder = self._folders.open(target.folder)
        try:
            self._system.link(place.name, target.name, folder=folder)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            if _is_there(target.name, folder):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            self._system.rename(place.name, target.name, folder=folder)
            self._leftovers.pop(place)


@contextmanager
def _reported_as(failure: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise PatchChanged(f"{failure}: {_CHANGED}") from error
        raise PatchNotApplied(f"{failure}: {os_detail(error)}") from error


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _refuse_sticky(folder: int, found: os.stat_result) -> None:
    """Check that the server may replace the file with the status `found` in the directory `folder`. In a sticky
    directory, the server may neither rename another user's file nor remove the hard link that serves as its backup.

    Raises:
        PermissionError: the file belongs to another user, and its directory is sticky.
    """
    around = os.stat(folder)
    if around.st_mode & stat.S_ISVTX and os.geteuid() not in (0, found.st_uid, around.st_uid):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


class _AttributeLost(OSError):
    """Raised when the server cannot copy an attribute of the old file to the new file."""

    def __init__(self, what: str) -> None:
        super().__init__(0, f"its {what} cannot be kept")


def _set_owner(descriptor: int, owner: tuple[int, int]) -> None:
    """Set the user and the group of a file. Only root can change the user. Other users can set only a group that
    they belong to.

    Raises:
        _AttributeLost: the operating system does not permit the change.
    """
    found = os.fstat(descriptor)
    if owner == (found.st_uid, found.st_gid):
        return
    try:
        os.fchown(descriptor, *owner)
    except OSError:
        raise _AttributeLost("owner" if owner[0] != found.st_uid else "group") from None


def _set_extended(descriptor: int, name: str, value: bytes) -> None:
    try:
        os.setxattr(descriptor, name, value)
    except OSError:
        # The operating system sets some attributes itself, so the attribute may already have the value.
        if _extended(descriptor).get(name) != value:
            raise _AttributeLost(f"extended attribute {name}") from None


def _extended(descriptor: int) -> dict[str, bytes]:
    """Return the extended attributes of a file that are copied to a new file. They include access control lists."""
    if sys.platform != "linux":
        return {}
    try:
        names = os.listxattr(descriptor)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP):
            return {}
        raise
    return {name: os.getxattr(descriptor, name) for name in names if name not in _NOT_KEPT}
