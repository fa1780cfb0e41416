"""Takes snapshots of files that control Git and coding agents before a command runs, and compares and restores the
files after the command.

This module lists the files of a Git directory that control Git. Every directory is opened relative to the
descriptor of its parent directory, and no symbolic link is followed. `protected_files` restores a snapshot when no
running command can write to its files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from parley.common.guarded_files import DirFds, UnexpectedSymlink
from parley.common.os_errors import os_detail
from parley.common.paths import is_below, is_below_any
from parley.errors import SandboxUnavailable
from parley.sandbox.git_placeholders import GitPlaceholder
from parley.sandbox.paths import belongs_to_another
from parley.sandbox.snapshot_entries import (
    ABSENT,
    Absent,
    Directory,
    Entry,
    File,
    Link,
    create,
    is_same,
    move_aside,
    names_in,
    read_entry,
    set_mode,
    with_mode,
)
from parley.wire.text import quoted

__all__ = ["MissingGit", "Restored", "Snapshot", "outermost"]

_OBEYED: Final = (
    "config",
    "config.worktree",
    "hooks",
    "info",
    "remotes",
    "branches",
    "objects/info/alternates",
    "commondir",
    "gitdir",
)
"""Files and directories in a Git directory that control Git, and are therefore protected. All other files in a Git
directory are data.
"""
_DATA_IN_INFO: Final = frozenset({"refs"})
"""Names of files that do not control Git, in the directory `info` of a Git directory. `refs` is a list of branches
that `git gc` writes and Git does not read.
"""
_GIT_MARKS: Final = ("HEAD", "config")
"""Names of files that mark a directory below `modules` as a Git directory."""

_MAX_ENTRIES: Final = 4096
"""The maximum number of files and directories in one snapshot."""
_MAX_BYTES: Final = 32 * 1024 * 1024
"""The maximum size, in bytes, of one snapshot. The limit is high because a hook may be a compiled program."""
_MAX_ADDED: Final = 256
"""The maximum number of added files in one directory that are moved aside one by one. If a command has added more
files, the whole directory is moved aside and created again from the snapshot. If the snapshot does not contain all
files of the directory, restoring fails instead.
"""


_Role = Literal["git", "holder", "worktrees", "info", "tree"]
"""The role of a directory, which determines what the snapshot contains: a Git directory (`git`), a directory below
`modules` that contains Git directories (`holder`), the directories `worktrees` and `info` of a Git directory, or a
directory in which all files are protected (`tree`).
"""


class Restored(Struct, kw_only=True):
    """The result of restoring a snapshot after a command."""

    restored: list[str] = field(default_factory=list)
    """Paths of files that had changed and were restored."""
    moved: dict[str, str] = field(default_factory=dict)
    """New paths of files that were moved aside, keyed by their old paths."""
    left: dict[str, str] = field(default_factory=dict)
    """The reasons why files could not be restored, keyed by path."""


# --- a path that must not exist ----------------------------------------------------------


class MissingGit:
    """A `.git` that did not exist, or was an empty directory, before the command."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.roots: set[str] = set()

    def restore(self) -> Restored:
        """If a command has created a file or a non-empty directory at this path, move it aside. Return what was
        moved aside, or the reason why it could not be moved.
        """
        result = Restored()
        try:
            if self._is_added():
                result.moved[self.path] = move_aside(self.path, os.path.dirname(self.path))
        except OSError as error:
            result.left[self.path] = os_detail(error)
        return result

    def is_changed(self, path: str) -> bool:
        """Return whether a command has created this `.git`. If this cannot be determined, return True. `path` is
        the path of this `.git`.
        """
        try:
            return self._is_added()
        except OSError:
            return True

    def _is_added(self) -> bool:
        folder, name = os.path.split(self.path)
        with DirFds() as folders:
            try:
                parent = folders.open(folder)
                found = os.lstat(name, dir_fd=parent)
            except FileNotFoundError:
                return False
            if belongs_to_another(found, os.fstat(parent)):
                return False
            try:
                if not stat.S_ISDIR(found.st_mode) or names_in(folders, self.path, at_most=0) is None:
                    return True
            except PermissionError:
                return True
        # Remove the empty directory, unless it is a placeholder that another server has locked.
        try:
            if (placeholder := GitPlaceholder.acquire(self.path)) is not None:
                placeholder.release()
        except SandboxUnavailable:
            pass
        return False


# --- files that must stay as they are ----------------------------------------------------


class Snapshot:
    """A snapshot of the protected files of one Git directory, or of one protected file or directory."""

    def __init__(self, path: str, *, is_git: bool) -> None:
        """Take the snapshot by reading the protected files. `is_git` is True if the path is a Git directory.

        Raises:
            SandboxUnavailable: the files cannot be read, or exceed the limits.
        """
        self.path = path
        self.roots: set[str] = set()
        """The roots of the commands that may have changed the files."""
        self._is_git = is_git
        self._entries: dict[str, Entry] = {}
        """The entries of the snapshot, keyed by path. A directory comes before its entries."""
        self._moved_aside: set[str] = set()
        """The new paths of the files that this object has moved aside. These files do not count as added files."""
        self._bytes = 0
        try:
            with DirFds() as folders:
                self._take(path, "git" if is_git else "tree", folders)
            if is_git and not isinstance(self._entries[path], Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            raise SandboxUnavailable(f"{quoted(path)} cannot be protected: {os_detail(error)}") from None

    def _take(self, path: str, role: _Role, folders: DirFds) -> None:
        waiting: list[tuple[str, _Role]] = [(path, role)]
        while waiting:
            path, role = waiting.pop()
            entry = read_entry(folders, path, at_most=_MAX_BYTES - self._bytes)
            if isinstance(entry, File):
                if entry.content is None:
                    raise SandboxUnavailable(
                        f"{quoted(path)} cannot be protected: the server cannot read it, or the protected files in "
                        f"{quoted(self.path)} exceed {_MAX_BYTES >> 20} MiB"
                    )
                self._bytes += len(entry.content)
            elif isinstance(entry, Directory):
                entry = self._listed(path, entry, role, folders)
                waiting += self._inside(path, entry, role, folders)
            self._entries[path] = entry
            if len(self._entries) + len(waiting) > _MAX_ENTRIES:
                raise self._too_many()

    def _listed(self, path: str, entry: Directory, role: _Role, folders: DirFds) -> Directory:
        if role == "git":
            return entry
        names = names_in(folders, path, at_most=_MAX_ENTRIES)
        if names is None:
            raise self._too_many()
        data = _DATA_IN_INFO if role == "info" else frozenset[str]()
        identity = None if role in ("info", "tree") else entry.identity
        return replace(entry, names=names - data, data=data, identity=identity)

    def _inside(self, path: str, entry: Directory, role: _Role, folders: DirFds) -> Iterator[tuple[str, _Role]]:
        """Yield the protected paths in the directory `path`, each with its role (`_Role`). `entry` and `role` are
        the entry and the role of the directory `path` itself.
        """
        if role == "git":
            for name in _OBEYED:
                yield _first_link(folders, path, name), "info" if name == "info" else "tree"
            yield os.path.join(path, "modules"), "holder"
            yield os.path.join(path, "worktrees"), "worktrees"
            return
        for name in entry.names or ():
            inner = os.path.join(path, name)
            if role == "holder":
                yield inner, "git" if _is_git_directory(folders, inner) else "holder"
            else:
                yield inner, "git" if role == "worktrees" else "tree"

    def _too_many(self) -> SandboxUnavailable:
        what = "protected files" if self._is_git else "files"
        return SandboxUnavailable(
            f"{quoted(self.path)} cannot be protected: it holds more than {_MAX_ENTRIES} {what}; "
            "use bubblewrap, or move some of them out of it"
        )

    # --- comparing -----------------------------------------------------------------------

    def is_changed(self, path: str) -> bool:
        """Return whether the file at `path`, which could not be restored, still differs from the snapshot."""
        return any(is_below(path, changed) or is_below(changed, path) for changed in self._changed())

    def _changed(self) -> Iterator[str]:
        """Yield the paths that differ from the snapshot."""
        with DirFds() as folders:
            for path, before in self._entries.items():
                try:
                    if not is_same(before, self._read_again(folders, path, before)):
                        yield path
                    elif isinstance(before, Directory):
                        added = self._added(folders, path, before)
                        yield from [path] if added is None else added
                except OSError:
                    yield path

    def _read_again(self, folders: DirFds, path: str, before: Entry) -> Entry:
        content = before.content if isinstance(before, File) else None
        try:
            return read_entry(folders, path, at_most=len(content or b""))
        except FileNotFoundError:
            return ABSENT

    def _added(self, folders: DirFds, path: str, before: Directory) -> list[str] | None:
        """Return the paths that commands have added to a directory, sorted; None if the directory now has over
        `_MAX_ADDED` more entries than in the snapshot. `before` is the directory in the snapshot.
        """
        if before.names is None:
            return []
        names = names_in(folders, path, at_most=len(before.names) + len(before.data) + _MAX_ADDED)
        if names is None:
            return None
        added = {os.path.join(path, name) for name in names - before.names - before.data}
        return sorted(added - self._moved_aside)

    # --- restoring -----------------------------------------------------------------------

    def restore(self) -> Restored:
        """Restore the files that differ from the snapshot, and move aside files that were added. Return which files
        were restored, were moved aside, or could not be restored.

        Call this method only while no command that can write to the files is running.
        """
        result = Restored()
        if next(self._changed(), None) is None:
            return result
        reasons: dict[str, str] = {}
        for path, before in self._entries.items():
            try:
                self._make_room(path, result)
                self._restore(path, before, result)
            except OSError as error:
                reasons[path] = os_detail(error)
        result.left = {
            path: reasons.get(path, "it was moved away or deleted") for path in outermost(self._changed())
        }
        result.restored = [path for path in outermost(result.restored) if path not in result.left]
        return result

    def _make_room(self, path: str, result: Restored) -> None:
        """If a command has replaced a directory above `path` with a symbolic link or a file, move the symbolic link
        or the file aside, and record this in `result`.
        """
        try:
            with DirFds() as folders:
                folders.open(os.path.dirname(path))
        except (UnexpectedSymlink, NotADirectoryError) as error:
            blocking = os.fsdecode(error.filename)
            if not is_below_any(os.path.dirname(blocking), self.roots):
                raise
            self._move_aside(blocking, result)
        except FileNotFoundError:
            pass

    def _restore(self, path: str, before: Entry, result: Restored) -> None:
        with DirFds() as folders:
            now = self._read_again(folders, path, before)
        if not is_same(before, now):
            is_in_place = isinstance(before, Directory) and is_same(before, with_mode(now, before.mode))
            is_replaced = isinstance(before, File | Link) and isinstance(now, File | Link)
            if not (is_in_place or is_replaced or isinstance(now, Absent)):
                self._move_aside(path, result)
            if not is_in_place and not create(path, before):
                return
            set_mode(path, before)
            result.restored.append(path)
        if isinstance(before, Directory):
            self._remove_added(path, before, result)

    def _remove_added(self, path: str, before: Directory, result: Restored) -> None:
        with DirFds() as folders:
            added = self._added(folders, path, before)
        if added is not None:
            for place in added:
                self._move_aside(place, result)
        elif before.identity is None:
            self._move_aside(path, result)
            create(path, before)
            set_mode(path, before)
            result.restored.append(path)
        else:
            raise OSError(0, f"more than {_MAX_ADDED} files were added to it")

    def _move_aside(self, path: str, result: Restored) -> None:
        inside = self._is_git and path != self.path and is_below(path, self.path)
        # A file from a Git directory is moved to the top of the Git directory. In a directory such as `modules`, it
        # could look like another Git directory.
        new = move_aside(path, self.path if inside else os.path.dirname(path))
        result.moved[path] = new
        self._moved_aside.add(new)


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths as a sorted list, without the paths that lie below another path of the list."""
    found: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not found or not is_below(path, found[-1]):
            found.append(path)
    return found


# --- Git directories ---------------------------------------------------------------------


def _first_link(folders: DirFds, git: str, name: str) -> str:
    """Return the path of the protected file `name` in a Git directory. If a directory in the path `name` is a
    symbolic link, return the path of the first symbolic link instead.
    """
    path = git
    for part in name.split("/")[:-1]:
        path = os.path.join(path, part)
        if isinstance(read_entry(folders, path, at_most=0), Link):
            return path
    return os.path.join(git, name)


def _is_git_directory(folders: DirFds, path: str) -> bool:
    if not isinstance(read_entry(folders, path, at_most=0), Directory):
        return False
    marks = (read_entry(folders, os.path.join(path, mark), at_most=0) for mark in _GIT_MARKS)
    return any(isinstance(mark, File | Link) for mark in marks)
