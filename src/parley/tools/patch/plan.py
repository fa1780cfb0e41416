"""Verifies a patch: parses and matches every hunk, and writes nothing.

The hunks are applied in order to staged copies of the files, so that several hunks for one file become one change.
`commit` detects changes that are made to a file between verification and writing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Literal

import msgspec
from msgspec import Struct

from parley.common.guarded_files import DirFds, Identity, UnexpectedSymlink
from parley.common.os_errors import os_detail
from parley.common.paths import is_below
from parley.tools.errors import PatchNotApplied
from parley.tools.patch.deadline import CancelToken, Deadline
from parley.tools.patch.limits import MAX_FILE_BYTES, MAX_FILES, MAX_LINES, MAX_PATCH_BYTES
from parley.tools.patch.matching import apply_chunks
from parley.tools.patch.parser import AddFile, DeleteFile, UpdateFile, parse
from parley.tools.patch.paths import PathResolver
from parley.wire.events import AddedFile, FileChange, OtherChange, UpdatedFile
from parley.wire.text import replace_surrogates

__all__ = ["Change", "Plan", "verify"]

_EVENT_CONTEXT: Final = 1


class Change(Struct, frozen=True, kw_only=True):
    """A change to the content, the permissions or the path of one file."""

    written: str
    """The path as written in the patch. For a moved file, this is the new path."""
    path: str
    """The absolute path of the file, without symbolic links."""
    before: bytes | None
    """The content before the change; None if the file does not exist yet."""
    after: bytes | None
    """The content after the change; None if the file is deleted."""
    mode: int | None
    """The permissions of the file after the change. None for a new file, which gets the default permissions. For a
    deleted file, the permissions before the change.
    """
    move_to: str | None = None
    """The new absolute path of a moved file, without symbolic links; None if the file is not moved."""
    given_up_mode: int | None = None
    """The permissions of the file that a moved file replaces. None if the moved file replaces no file, or if both
    files have the same permissions.
    """

    @property
    def mode_before(self) -> int | None:
        """The permissions of the file before the change; None if the file does not exist yet."""
        if self.before is None:
            return None
        return self.mode if self.given_up_mode is None else self.given_up_mode

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that are written, created or removed."""
        return (self.path,) if self.move_to is None else (self.path, self.move_to)

    @property
    def letter(self) -> Literal["A", "M", "D"]:
        """The letter of the change in the model-facing text: `A` for added, `M` for modified, `D` for deleted."""
        if self.before is None:
            return "A"
        return "D" if self.after is None else "M"


class Plan(Struct, frozen=True, kw_only=True):
    """The changes of a verified patch."""

    changes: tuple[Change, ...]
    inside_cwd: bool
    """True if every file is below the conversation's working directory, with symbolic links resolved."""
    folders: dict[str, Identity | None] = {}
    """The identities of the files' directories, keyed by path; None for a directory that does not exist yet."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that are written, created or removed, including both paths of a moved file."""
        return tuple(path for change in self.changes for path in change.paths)

    @property
    def covers(self) -> str:
        """A digest of the files, their contents, their permissions and their directories. An approval is valid only
        for this digest.
        """
        folders = sorted((os.fsencode(path), its) for path, its in self.folders.items())
        return sha256(_digest(self.changes) + msgspec.msgpack.encode(folders)).hexdigest()

    def summary(self) -> str:
        """Return the model-facing text for a patch that has been applied."""
        lines = [f"{c.letter} {c.written}\n" for letter in "AMD" for c in self.changes if c.letter == letter]
        return "Success. Updated the following files:\n" + "".join(lines)

    def for_events(self, *, cancel: CancelToken | None = None) -> dict[str, FileChange]:
        """Return the changes for an event, keyed by absolute path.

        Raises:
            PatchNotApplied: the work was cancelled.
        """
        # imported here: the module is large, and only this method needs it
        from parley.tools.patch.diffs import Effort, unified_diff

        effort = Effort(cancel=cancel)

        def shown(change: Change) -> FileChange:
            if change.after is None:
                return "delete"
            if change.before is None:
                return OtherChange(add=AddedFile(content=change.after.decode(errors="replace")))
            diff = unified_diff(change.before, change.after, context=_EVENT_CONTEXT, effort=effort)
            move_path = None if change.move_to is None else replace_surrogates(change.move_to)
            return OtherChange(update=UpdatedFile(unified_diff=diff, move_path=move_path))

        return {replace_surrogates(change.path): shown(change) for change in self.changes}


def _digest(changes: Sequence[Change]) -> bytes:
    """Return a digest of the changed files, their contents and their permissions."""
    summed = sha256()
    for change in changes:
        paths = [os.fsencode(path) for path in change.paths]
        modes = change.mode, change.given_up_mode
        summed.update(msgspec.msgpack.encode((paths, change.before, change.after, modes)))
    return summed.digest()


def verify(
    patch: str,
    *,
    workdir: str,
    cwd: str,
    home: str | None = None,
    hidden: Sequence[str] = (),
    installed: Sequence[str] = (),
    cancel: CancelToken | None = None,
) -> Plan:
    """Verify a patch and return the plan of its changes. The paths of the patch are relative to `workdir`. `cwd` is
    the working directory of the conversation.

    Parley's `home`, its `installed` programs and the `hidden` paths are protected.

    Raises:
        PatchNotApplied: the patch is invalid, does not match the files or names a protected path, or the work was
            cancelled.
    """
    try:
        size = len(patch.encode())
    except UnicodeEncodeError:
        raise PatchNotApplied("error: invalid patch: the text is not valid Unicode") from None
    if size > MAX_PATCH_BYTES:
        raise PatchNotApplied(f"error: the patch is larger than {_mebibytes(MAX_PATCH_BYTES)}")
    if patch.count("\n") > MAX_LINES:
        raise PatchNotApplied(f"error: the patch has more than {MAX_LINES} lines")
    hunks = parse(patch, cancel=cancel)
    if not hunks:
        raise PatchNotApplied("patch rejected: empty patch")
    if len(hunks) > MAX_FILES:
        raise PatchNotApplied(f"error: the patch has more than {MAX_FILES} hunks")
    paths = PathResolver(cwd=cwd, workdir=workdir, home=home, hidden=hidden, installed=installed)
    try:
        opened = DirFds(hidden, visible=paths.cwd)
    except OSError as error:
        raise PatchNotApplied(f"error: no file can be read: {os_detail(error)}") from None
    with opened as folders:
        staged = _StagedFiles(paths, folders, Deadline(cancel=cancel))
        for hunk in hunks:
            match hunk:
                case AddFile():
                    staged.add(hunk)
                case DeleteFile():
                    staged.delete(hunk)
                case UpdateFile():
                    staged.update(hunk)
        changes = staged.changes()
        found = _folders_of(changes, folders)
    inside_cwd = all(is_below(path, paths.cwd) for change in changes for path in change.paths)
    return Plan(changes=changes, inside_cwd=inside_cwd, folders=found)


def _folders_of(changes: Sequence[Change], folders: DirFds) -> dict[str, Identity | None]:
    """Return the identity of each file's directory, keyed by path. The identity is None if the directory does not
    exist.

    If a directory does not exist, the result also contains the directories above it, up to the first existing one.
    """
    found: dict[str, Identity | None] = {}
    for path in [path for change in changes for path in change.paths]:
        folder = os.path.dirname(path)
        while folder != "/" and folder not in found:
            found[folder] = folders.seen(folder)
            folder = "/" if found[folder] else os.path.dirname(folder)
    return found


def _mebibytes(size: int) -> str:
    return f"{size // (1024 * 1024)} MiB"


# --- staged files --------------------------------------------------


class _DiskFile(Struct, frozen=True):
    """The content and the permissions of a file on disk before the patch is applied."""

    path: str
    content: bytes
    mode: int


class _File(Struct, frozen=True):
    """The content of a file after the hunks that were applied so far."""

    content: bytes
    original: _DiskFile | None
    """The file on disk that was changed or moved; None for a new file."""


class _StagedFiles:
    """The files that a patch names: their contents on disk, and their contents after the hunks."""

    def __init__(self, paths: PathResolver, folders: DirFds, deadline: Deadline) -> None:
        self._paths, self._folders, self._deadline = paths, folders, deadline
        self._on_disk: dict[str, _DiskFile | None] = {}
        self._now: dict[str, _File | None] = {}
        self._written: dict[str, str] = {}
        self._new_folders: set[str] = set()
        self._bytes_read = 0

    def add(self, hunk: AddFile) -> None:
        path, shown = self._named(hunk.path)
        self._must_be_free(path, shown)
        self._put(path, shown, _File("".join(f"{line}\n" for line in hunk.lines).encode(), None))

    def delete(self, hunk: DeleteFile) -> None:
        path, shown = self._named(hunk.path)
        self._must_exist(path, shown, f"Failed to delete file {shown}")
        self._now[path] = None

    def update(self, hunk: UpdateFile) -> None:
        path, shown = self._named(hunk.path)
        file = self._must_exist(path, shown, f"Failed to read file to update {shown}")
        if file.content.count(b"\n") > MAX_LINES:
            raise PatchNotApplied(f"error: {shown} has more than {MAX_LINES} lines")
        content = apply_chunks(file.content, hunk.chunks, path=shown, deadline=self._deadline)
        if hunk.move_to is not None:
            target, target_shown = self._named(hunk.move_to)
            if target != path:
                self._must_be_free(target, target_shown)
                self._now[path] = None
                path, shown = target, target_shown
        self._put(path, shown, _File(content, file.original))

    def changes(self) -> tuple[Change, ...]:
        """Return the changes of all hunks, one for each file."""
        moved = {
            file.original.path: path
            for path, file in self._now.items()
            if file and file.original and file.original.path != path and self._on_disk[path] is None
        }
        changes: list[Change] = []
        for path, file in self._now.items():
            seen = self._on_disk[path]
            target = moved.get(path) if file is None else None
            if target is not None:
                file = self._now[target]
            elif (
                file
                and file.original
                and moved.get(file.original.path) == path
                and self._now[file.original.path] is None
            ):
                continue  # this change is part of the change of the file that was moved
            if seen is None and file is None:
                continue  # the patch adds the file and deletes it again
            kept = file.original if file and file.original else seen
            gives_up = seen is not None and kept is not None and kept.mode != seen.mode
            changes.append(
                Change(
                    written=self._written[target or path],
                    path=path,
                    before=seen.content if seen else None,
                    after=file.content if file else None,
                    mode=kept.mode if kept else None,
                    move_to=target,
                    given_up_mode=seen.mode if seen and gives_up else None,
                )
            )
        self._limit(changes)
        return tuple(changes)

    def _limit(self, changes: Sequence[Change]) -> None:
        if len(self._now) > MAX_FILES:
            raise PatchNotApplied(f"error: the patch names more than {MAX_FILES} files")
        if sum(len(change.after or b"") for change in changes) > MAX_PATCH_BYTES:
            raise PatchNotApplied(f"error: the patch writes more than {_mebibytes(MAX_PATCH_BYTES)}")
        for path, file in self._now.items():
            if file is not None and path in self._new_folders:
                shown = self._paths.shown(self._written[path])
                raise PatchNotApplied(f"error: {shown} would be both a file and a directory")

    def _named(self, written: str) -> tuple[str, str]:
        """Resolve a path in the patch. Return the resolved path, and the path that is shown to the model."""
        path = self._paths.resolve(written)
        self._written[path] = written
        return path, self._paths.shown(written)

    def _put(self, path: str, shown: str, file: _File) -> None:
        if len(file.content) > MAX_FILE_BYTES:
            raise PatchNotApplied(f"error: {shown} would be larger than {_mebibytes(MAX_FILE_BYTES)}")
        self._now[path] = file

    def _must_exist(self, path: str, shown: str, failure: str) -> _File:
        if path not in self._now:
            try:
                folder, name = self._folder_of(path)
                seen = self._read(path, folder, name, shown)
            except OSError as error:
                raise PatchNotApplied(f"error: {failure}: {os_detail(error)}") from None
            self._on_disk[path] = seen
            return _File(seen.content, seen)
        file = self._now[path]
        if file is None:
            raise PatchNotApplied(
                f"error: {failure}: {os_detail(OSError(errno.ENOENT, os.strerror(errno.ENOENT)))}"
            )
        return file

    def _must_be_free(self, path: str, shown: str) -> None:
        try:
            is_free = self._now[path] is None if path in self._now else self._is_free(path)
        except OSError as error:
            raise PatchNotApplied(f"error: Failed to write file {shown}: {os_detail(error)}") from None
        if not is_free:
            raise PatchNotApplied(f"error: File already exists: {shown}")

    def _is_free(self, path: str) -> bool:
        self._on_disk[path] = None
        try:
            folder, name = self._folder_of(path)
        except FileNotFoundError as missing:
            self._add_new_folders(os.path.dirname(path), missing.filename)
            return True
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return True
        if stat.S_ISLNK(found.st_mode):
            raise UnexpectedSymlink(path)
        return False

    def _add_new_folders(self, folder: str, first: str) -> None:
        """Record that the patch creates the directories from `first` down to `folder`, and check that the patch
        does not create more than `MAX_FILES` directories.
        """
        while len(folder) >= len(first) and folder not in self._new_folders:
            self._new_folders.add(folder)
            folder = os.path.dirname(folder)
        if len(self._new_folders) > MAX_FILES:
            raise PatchNotApplied(f"error: the patch would create more than {MAX_FILES} directories")

    def _folder_of(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return self._folders.open(folder), name

    def _read(self, path: str, folder: int, name: str, shown: str) -> _DiskFile:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise UnexpectedSymlink(path)
        if not stat.S_ISREG(found.st_mode):
            raise PatchNotApplied(f"error: {shown} is not a regular file")
        # When a file is replaced, the system checks only the permissions of its directory, so the permissions of
        # the file are checked here.
        if not found.st_mode & stat.S_IWUSR or not os.access(name, os.W_OK, dir_fd=folder):
            raise PatchNotApplied(f"error: {shown} is read-only")
        content = self._folders.read_whole(path, at_most=MAX_FILE_BYTES)
        if content is None:
            is_large = found.st_size > MAX_FILE_BYTES
            why = f"larger than {_mebibytes(MAX_FILE_BYTES)}" if is_large else "being changed by another program"
            raise PatchNotApplied(f"error: {shown} is {why}")
        self._bytes_read += len(content)
        if self._bytes_read > MAX_PATCH_BYTES:
            raise PatchNotApplied(f"error: the patch reads more than {_mebibytes(MAX_PATCH_BYTES)}")
        return _DiskFile(path, content, stat.S_IMODE(found.st_mode))
