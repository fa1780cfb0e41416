"""Snapshots of files that Git and agents obey: taken before a command runs, compared and restored after it.

Knows which files of a Git directory Git obeys. Every directory is opened by its descriptor without following a
link. Does not know which commands run; `protected_files` does, and restores only when none of them is left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from parley.common.guarded_files import DirFds, Identity, UnexpectedSymlink, identity_of
from parley.common.os_errors import os_detail
from parley.common.paths import is_below
from parley.errors import SandboxUnavailable
from parley.sandbox.git_placeholders import GitPlaceholder
from parley.sandbox.paths import belongs_to_another
from parley.wire.text import quoted

__all__ = ["MOVED_ASIDE", "MissingGit", "Restored", "Snapshot", "outermost"]

MOVED_ASIDE: Final = ".refused-"
"""Prefix of the name of a file that was moved aside. Git and agents read no file of such a name."""

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
"""Files and directories that Git obeys in a Git directory. Everything else there is data."""
_DATA_IN_INFO: Final = frozenset({"refs"})
"""A list of branches that `git gc` writes. Git does not read it."""
_GIT_MARKS: Final = ("HEAD", "config")
"""A directory below `modules` that has one of these is a Git directory."""

_MAX_ENTRIES: Final = 4096
_MAX_BYTES: Final = 32 * 1024 * 1024
"""Limits of one snapshot. A hook may be a compiled program."""
_MAX_ADDED: Final = 256
"""Files added to one directory that are moved aside one by one."""
_MAX_NAME_BYTES: Final = 255

_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


# --- what a snapshot holds ---------------------------------------------------------------


class _Absent(Struct, frozen=True):
    """There is nothing of this name."""


class _File(Struct, frozen=True, kw_only=True):
    mode: int
    content: bytes | None
    """None: the file cannot be read, or is larger than expected."""
    links: int
    """Number of hard links."""
    owner: tuple[int, int]
    """User and group."""
    has_writer: bool
    """A process has it open for writing."""


class _Link(Struct, frozen=True):
    target: str


class _Directory(Struct, frozen=True, kw_only=True):
    mode: int
    identity: Identity | None
    """None: the snapshot holds everything in the directory, so that it can be created again."""
    names: frozenset[str] | None = None
    """Its entries; None: entries may be added."""
    data: frozenset[str] = frozenset()
    """Names in it that are not protected."""


class _Special(Struct, frozen=True):
    """A pipe, a socket or a device."""

    kind: int
    device: int


_Entry = _Absent | _File | _Link | _Directory | _Special

_ABSENT: Final = _Absent()

_Role = Literal["git", "holder", "worktrees", "info", "tree"]
"""How a directory is read: as a Git directory, as one below `modules`, as `worktrees`, as `info`, or completely."""


class Restored(Struct, kw_only=True):
    """What was done to the protected files after a command."""

    restored: list[str] = field(default_factory=list)
    """Paths of files that had changed and are as before."""
    moved: dict[str, str] = field(default_factory=dict)
    """New paths of files that were moved aside, by their old paths."""
    left: dict[str, str] = field(default_factory=dict)
    """Reasons why files could not be restored, by their paths."""


# --- a path that must not exist ----------------------------------------------------------


class MissingGit:
    """A `.git` that did not exist, or was an empty directory, before the command."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.roots: set[str] = set()

    def restore(self) -> Restored:
        """Move aside what is there now."""
        result = Restored()
        try:
            if self._is_added():
                result.moved[self.path] = _move_aside(self.path, os.path.dirname(self.path))
        except OSError as error:
            result.left[self.path] = os_detail(error)
        return result

    def is_changed(self, path: str) -> bool:
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
                if not stat.S_ISDIR(found.st_mode) or _names(folders, self.path, at_most=0) is None:
                    return True
            except PermissionError:
                return True
        # An empty directory may be the placeholder of another server, which is locked then.
        try:
            if (placeholder := GitPlaceholder.acquire(self.path)) is not None:
                placeholder.release()
        except SandboxUnavailable:
            pass
        return False


# --- files that must stay as they are ----------------------------------------------------


class Snapshot:
    """The protected files of one Git directory, or one protected file or directory."""

    def __init__(self, path: str, *, is_git: bool) -> None:
        """Read the files.

        Raises:
            SandboxUnavailable: they cannot be read, or exceed the limits.
        """
        self.path = path
        self.roots: set[str] = set()
        """Roots of the commands that may have changed the files."""
        self._is_git = is_git
        self._entries: dict[str, _Entry] = {}
        """By path; a directory comes before its entries."""
        self._bytes = 0
        try:
            with DirFds() as folders:
                self._take(path, "git" if is_git else "tree", folders)
            if is_git and not isinstance(self._entries[path], _Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            raise SandboxUnavailable(f"{quoted(path)} cannot be protected: {os_detail(error)}") from None

    def _take(self, path: str, role: _Role, folders: DirFds) -> None:
        waiting: list[tuple[str, _Role]] = [(path, role)]
        while waiting:
            path, role = waiting.pop()
            entry = _look(folders, path, at_most=_MAX_BYTES - self._bytes)
            if isinstance(entry, _File):
                if entry.content is None:
                    raise SandboxUnavailable(
                        f"{quoted(path)} cannot be protected: the server cannot read it, or the protected files in "
                        f"{quoted(self.path)} exceed {_MAX_BYTES >> 20} MiB"
                    )
                self._bytes += len(entry.content)
            elif isinstance(entry, _Directory):
                entry = self._listed(path, entry, role, folders)
                waiting += self._inside(path, entry, role, folders)
            self._entries[path] = entry
            if len(self._entries) + len(waiting) > _MAX_ENTRIES:
                raise self._too_many()

    def _listed(self, path: str, entry: _Directory, role: _Role, folders: DirFds) -> _Directory:
        if role == "git":
            return entry
        names = _names(folders, path, at_most=_MAX_ENTRIES)
        if names is None:
            raise self._too_many()
        data = _DATA_IN_INFO if role == "info" else frozenset[str]()
        identity = None if role in ("info", "tree") else entry.identity
        return replace(entry, names=names - data, data=data, identity=identity)

    def _inside(self, path: str, entry: _Directory, role: _Role, folders: DirFds) -> Iterator[tuple[str, _Role]]:
        """Yield the paths in a directory that are protected."""
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
        """Return whether a path that could not be restored still differs from the snapshot."""
        return any(is_below(path, changed) or is_below(changed, path) for changed in self._changed())

    def _changed(self) -> Iterator[str]:
        """Yield the paths that differ from the snapshot."""
        with DirFds() as folders:
            for path, before in self._entries.items():
                try:
                    if not _is_same(before, self._look_again(folders, path, before)):
                        yield path
                    elif isinstance(before, _Directory):
                        added = _added(folders, path, before)
                        yield from [path] if added is None else (os.path.join(path, name) for name in added)
                except OSError:
                    yield path

    def _look_again(self, folders: DirFds, path: str, before: _Entry) -> _Entry:
        content = before.content if isinstance(before, _File) else None
        try:
            return _look(folders, path, at_most=len(content or b""))
        except FileNotFoundError:
            return _ABSENT

    # --- restoring -----------------------------------------------------------------------

    def restore(self) -> Restored:
        """Replace files that differ, and move aside files that were added.

        No command may run that can write to the files.
        """
        result = Restored()
        if next(self._changed(), None) is None:
            return result
        reasons: dict[str, str] = {}
        for path, before in self._entries.items():
            try:
                self._clear_way(path, result)
                self._restore(path, before, result)
            except OSError as error:
                reasons[path] = os_detail(error)
        result.left = {
            path: reasons.get(path, "it was moved away or deleted") for path in outermost(self._changed())
        }
        result.restored = [path for path in outermost(result.restored) if path not in result.left]
        return result

    def _clear_way(self, path: str, result: Restored) -> None:
        """Move aside a link or file that was put in place of a directory on the way to a path."""
        try:
            with DirFds() as folders:
                folders.open(os.path.dirname(path))
        except (UnexpectedSymlink, NotADirectoryError) as error:
            blocking = os.fsdecode(error.filename)
            if not any(is_below(os.path.dirname(blocking), root) for root in self.roots):
                raise
            self._move_aside(blocking, result)
        except FileNotFoundError:
            pass

    def _restore(self, path: str, before: _Entry, result: Restored) -> None:
        with DirFds() as folders:
            now = self._look_again(folders, path, before)
        if not _is_same(before, now):
            is_in_place = isinstance(before, _Directory) and _is_same(before, _with_mode(now, before.mode))
            is_replaced = isinstance(before, _File | _Link) and isinstance(now, _File | _Link)
            if not (is_in_place or is_replaced or isinstance(now, _Absent)):
                self._move_aside(path, result)
            if not is_in_place and not _create(path, before):
                return
            _set_mode(path, before)
            result.restored.append(path)
        if isinstance(before, _Directory):
            self._remove_added(path, before, result)

    def _remove_added(self, path: str, before: _Directory, result: Restored) -> None:
        with DirFds() as folders:
            added = _added(folders, path, before)
        if added is not None:
            for name in sorted(added):
                self._move_aside(os.path.join(path, name), result)
        elif before.identity is None:
            self._move_aside(path, result)
            _create(path, before)
            _set_mode(path, before)
            result.restored.append(path)
        else:
            raise OSError(0, f"more than {_MAX_ADDED} files were added to it")

    def _move_aside(self, path: str, result: Restored) -> None:
        inside = self._is_git and path != self.path and is_below(path, self.path)
        # Not beside a submodule: its name would be one of a submodule again.
        result.moved[path] = _move_aside(path, self.path if inside else os.path.dirname(path))


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that do not lie below another of them, sorted."""
    found: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not found or not is_below(path, found[-1]):
            found.append(path)
    return found


# --- files by descriptor -----------------------------------------------------------------


def _look(folders: DirFds, path: str, *, at_most: int) -> _Entry:
    """Return what a path is. The content of a file of more than `at_most` bytes is None.

    Raises:
        OSError: the directory cannot be opened, or is a link.
    """
    folder, name = os.path.split(path)
    try:
        parent = folders.open(folder)
        found = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return _ABSENT
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return _Link(os.readlink(name, dir_fd=parent))
    if stat.S_ISDIR(found.st_mode):
        return _Directory(mode=mode, identity=identity_of(found))
    if not stat.S_ISREG(found.st_mode):
        return _Special(stat.S_IFMT(found.st_mode), found.st_rdev)
    content, has_writer = _content(name, parent, at_most)
    owner = (found.st_uid, found.st_gid)
    return _File(mode=mode, content=content, links=found.st_nlink, owner=owner, has_writer=has_writer)


def _content(name: str, folder: int, at_most: int) -> tuple[bytes | None, bool]:
    """Return the content of a regular file, or None if it is larger or cannot be read; and whether it has a writer.

    A process that closes the file after the first check may have changed it before: the content is read later.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except PermissionError:
        return None, False
    try:
        has_writer = _has_writer(descriptor)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > at_most:
            return None, has_writer
        content = b""
        while len(content) <= found.st_size and (piece := os.read(descriptor, found.st_size + 1 - len(content))):
            content += piece
        return (content if len(content) <= found.st_size else None), has_writer
    finally:
        os.close(descriptor)


def _has_writer(descriptor: int) -> bool:
    """Return whether a process has this file open for writing; False if the file system does not say.

    The kernel grants a read lease only on a file that no process has open for writing.
    """
    try:
        # Should a process open the file in this moment, the kernel notifies us. SIGIO would end the server.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there are no leases, or the file belongs to another user
    return False


def _names(folders: DirFds, path: str, *, at_most: int) -> frozenset[str] | None:
    """Return the names in a directory; None if there are more than `at_most`."""
    names: set[str] = set()
    descriptor = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=folders.open(path))
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if len(names) == at_most:
                    return None
                names.add(entry.name)
    finally:
        os.close(descriptor)
    return frozenset(names)


def _added(folders: DirFds, path: str, before: _Directory) -> frozenset[str] | None:
    """Return the names that were added to a directory; None if there are too many."""
    if before.names is None:
        return frozenset()
    names = _names(folders, path, at_most=len(before.names) + len(before.data) + _MAX_ADDED)
    return None if names is None else names - before.names - before.data


def _first_link(folders: DirFds, git: str, name: str) -> str:
    """Return the path of a protected file, or of a link in place of a directory on the way to it."""
    path = git
    for part in name.split("/")[:-1]:
        path = os.path.join(path, part)
        if isinstance(_look(folders, path, at_most=0), _Link):
            return path
    return os.path.join(git, name)


def _is_git_directory(folders: DirFds, path: str) -> bool:
    if not isinstance(_look(folders, path, at_most=0), _Directory):
        return False
    marks = (_look(folders, os.path.join(path, mark), at_most=0) for mark in _GIT_MARKS)
    return any(isinstance(mark, _File | _Link) for mark in marks)


def _is_same(before: _Entry, now: _Entry) -> bool:
    if isinstance(before, _File) and isinstance(now, _File):
        # By a second name, or by a descriptor that a command of another root holds, it could be changed later.
        can_change = now.links > before.links or now.has_writer > before.has_writer
        return (before.mode, before.content) == (now.mode, now.content) and not can_change
    if isinstance(before, _Directory) and isinstance(now, _Directory):
        return before.mode == now.mode and before.identity in (None, now.identity)
    return before == now


def _with_mode(entry: _Entry, mode: int) -> _Entry:
    return replace(entry, mode=mode) if isinstance(entry, _Directory) else entry


def _create(path: str, entry: _Entry) -> bool:
    """Create a file, link or directory again, and return whether the snapshot holds enough for that.

    A file or link that is there is replaced atomically.
    """
    folder, name = os.path.split(path)
    new = f".new-{os.urandom(8).hex()}"
    with DirFds() as folders:
        parent = folders.open(folder)
        match entry:
            case _Directory(identity=None):
                os.mkdir(name, mode=0o700, dir_fd=parent)
                return True
            case _File(content=bytes(content), mode=mode, owner=owner):
                descriptor = os.open(new, _CREATE, mode=0o600, dir_fd=parent)
                try:
                    with open(descriptor, "wb") as file:
                        file.write(content)
                        file.flush()
                        found = os.fstat(descriptor)
                        if (found.st_uid, found.st_gid) != owner:
                            os.fchown(descriptor, *owner)
                        os.fchmod(descriptor, mode)
                        os.fsync(descriptor)
                    os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
                except BaseException:
                    os.unlink(new, dir_fd=parent)
                    raise
                return True
            case _Link(target):
                os.symlink(target, new, dir_fd=parent)
                os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
                return True
            case _:
                return False


def _set_mode(path: str, entry: _Entry) -> None:
    """Give a directory its mode; everything else has it already."""
    if not isinstance(entry, _Directory):
        return
    folder, name = os.path.split(path)
    with DirFds() as folders:
        _change_mode(name, folders.open(folder), entry.mode)


def _change_mode(name: str, parent: int, mode: int) -> None:
    descriptor = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)


def _move_aside(path: str, target: str) -> str:
    """Rename a file or directory into the directory `target`, and return its new path."""
    folder, name = os.path.split(path)
    new = os.fsdecode(os.fsencode(f"{MOVED_ASIDE}{os.urandom(4).hex()}-{name}")[:_MAX_NAME_BYTES])
    with DirFds() as sources, DirFds() as targets:
        source, destination = sources.open(folder), targets.open(target)
        try:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=destination)
        except PermissionError:  # moving a directory needs the right to write to it
            if not stat.S_ISDIR(os.lstat(name, dir_fd=source).st_mode):
                raise
            _change_mode(name, source, stat.S_IRWXU)
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=destination)
    return os.path.join(target, new)
