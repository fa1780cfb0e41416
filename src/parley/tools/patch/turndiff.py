"""Creates the diff of a turn, in Git's format (docs/protocol.md#apply_patch).

The module keeps the contents that the changed files had before the turn, and reads their current contents when it
creates the diff. A file that exceeds a limit of the diff is shown like a binary file. The module does not run Git,
and follows no symbolic links.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from hashlib import sha1
from typing import Final, NamedTuple

from parley.common.git_files import is_repository
from parley.common.guarded_files import DirFds
from parley.tools.patch.diffs import STEPS, Effort, unified_diff
from parley.tools.patch.limits import MAX_DIFF_BYTES, MAX_FILE_BYTES, MAX_PATCH_BYTES

__all__ = ["TouchedFiles"]

CONTEXT_LINES: Final = 3

BINARY_BYTES: Final = 8000
"""The number of bytes at the start of a file that are searched for a NUL byte. As in Git, a file with a NUL byte
there is binary.
"""

NO_BLOB: Final = "0" * 40


class TouchedFiles:
    """The files that a turn has changed."""

    def __init__(self, cwd: str, *, hidden: Sequence[str] = ()) -> None:
        """Create an empty set of files. The paths of the files are absolute or relative to `cwd`, and contain no
        symbolic links. Files at or below the `hidden` paths are not read.
        """
        self._cwd, self._hidden = cwd, hidden
        self._before: dict[str, _Version | None] = {}
        """The versions of the files before the turn, keyed by normalised absolute path; None for a file that did
        not exist.
        """
        self._given: dict[str, str] = {}
        """The path of each file as it was first passed to `before`, keyed by normalised absolute path. The diff
        shows this path if the file is in no repository.
        """
        self._origins: dict[str, str] = {}
        """The old path of each moved file, keyed by its new path. Both are normalised absolute paths."""
        self._room = MAX_PATCH_BYTES
        self._hunks: dict[_Pair, str] = {}
        """The hunks of the previous diff, keyed by the Git object ids of the old and the new content. The next diff
        reuses the hunks of files that have not changed since.
        """

    def before(self, path: str, content: bytes | None, mode: int | None) -> None:
        """Record the content and the mode of a file before it changes. Both are None if the file does not exist.

        Only the first call for a file has an effect.
        """
        place = self._place(path)
        if place in self._before:
            return
        self._given[place] = os.path.join(self._cwd, path)
        if content is None:
            self._before[place] = None
            return
        kept = len(content) <= min(MAX_FILE_BYTES, self._room)
        self._before[place] = _Version(_blob(content), _git_mode(mode or 0), content if kept else None)
        if kept:
            self._room -= len(content)

    def moved(self, path: str, new_path: str) -> None:
        """Record that the file at `path` was moved to `new_path`, so that the diff shows the file only once, with
        both names.

        Both paths must have been passed to `before` earlier.
        """
        place = self._place(path)
        self._origins[self._place(new_path)] = self._origins.pop(place, place)

    def render(self) -> str:
        """Return the diff of all changes of the turn, sorted by path; empty if there are no changes.

        Raises:
            OSError: the root directory cannot be opened.
        """
        sections: list[str] = []
        shown: dict[_Pair, str] = {}
        steps, room = 2 * STEPS, MAX_DIFF_BYTES
        for file in sorted(self._file_versions(), key=lambda file: file.new_name):
            hunks = None if file.pair is None else self._hunks.get(file.pair)
            if hunks is None and file.least_bytes <= room:
                # A file gets at most half of the remaining steps, so that some are left for the next file.
                effort = Effort(steps // 2)
                hunks = file.hunks(effort)
                steps -= steps // 2 - effort.left
            size = 0 if hunks is None else len(hunks.encode())
            if size > room:
                hunks = None
            elif hunks is not None and file.pair is not None:
                room -= size
                shown[file.pair] = hunks
            sections.append(file.rendered(hunks))
        self._hunks = shown
        return "".join(sections)

    def _place(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._cwd, path))

    def _read_all(self) -> dict[str, _Version | None]:
        now: dict[str, _Version | None] = {}
        room = MAX_PATCH_BYTES
        with DirFds(self._hidden, visible=self._cwd) as folders:
            for place in sorted(self._before):
                now[place] = version = _read(folders, place, limit=min(MAX_FILE_BYTES, room))
                if version is not None and version.content is not None:
                    room -= len(version.content)
        return now

    def _file_versions(self) -> list[_FileVersions]:
        now = self._read_all()
        roots: dict[str, str | None] = {}
        names = {place: _name(place, self._given[place], roots) for place in self._before}

        versions: list[_FileVersions] = []
        moved: set[str] = set()
        for new_place, place in self._origins.items():
            before = self._before.get(place)
            gone = before is not None and now[place] is None and place not in moved
            if gone and self._before.get(new_place) is None and now.get(new_place) is not None:
                versions.append(_FileVersions(names[place], names[new_place], before, now[new_place]))
                moved |= {place, new_place}
        versions += [
            _FileVersions(names[place], names[place], before, now[place])
            for place, before in self._before.items()
            if place not in moved
        ]
        return versions


class _Version(NamedTuple):
    """The version of a file before the turn, or the current version."""

    blob: str | None
    """The Git object id of the content; None if the content was not read."""
    mode: str
    content: bytes | None
    """The content; None if the content was not read, or if it would exceed the limit on stored contents."""

    @property
    def text(self) -> bytes | None:
        """The content of a text file; None for a binary file, or if the content is not known."""
        return None if self.content is None or b"\0" in self.content[:BINARY_BYTES] else self.content


_Pair = tuple[str, str]
"""The Git object ids of the old and the new content."""


class _FileVersions(NamedTuple):
    """The version of a file before the turn, and the current version. A missing file has the version None."""

    name: bytes
    new_name: bytes
    before: _Version | None
    now: _Version | None

    @property
    def pair(self) -> _Pair | None:
        """The Git object ids of the old and the new content; None if one of the contents was not read."""
        blob, new_blob = self._blobs()
        return None if blob is None or new_blob is None else (blob, new_blob)

    @property
    def least_bytes(self) -> int:
        """The minimum size of the hunks in bytes: the difference between the lengths of the old and the new
        content.
        """
        text, new_text = self._texts()
        return 0 if text is None or new_text is None else abs(len(text) - len(new_text))

    def hunks(self, effort: Effort) -> str | None:
        """Return the hunks of the change; None for a binary file or for unknown content."""
        text, new_text = self._texts()
        if text is None or new_text is None:
            return None
        return unified_diff(text, new_text, context=CONTEXT_LINES, effort=effort)

    def rendered(self, hunks: str | None) -> str:
        """Return the section of the diff for this file; empty if the file is unchanged.

        If `hunks` is None, the section only states that the file differs.
        """
        lines = [*self._modes(), *self._body(hunks)]
        if not lines:
            return ""
        return "".join([f"diff --git {_quoted(b'a/' + self.name)} {_quoted(b'b/' + self.new_name)}\n", *lines])

    def _modes(self) -> list[str]:
        match self.before, self.now:
            case None, _Version(mode=mode):
                return [f"new file mode {mode}\n"]
            case _Version(mode=mode), None:
                return [f"deleted file mode {mode}\n"]
            case _Version(mode=old_mode), _Version(mode=mode) if old_mode != mode:
                return [f"old mode {old_mode}\n", f"new mode {mode}\n"]
            case _:
                return []

    def _body(self, hunks: str | None) -> list[str]:
        blob, new_blob = self._blobs()
        if blob == new_blob is not None:
            return self._other_name() if self.name != self.new_name else []

        index = [] if blob is None or new_blob is None else [f"index {blob}..{new_blob}\n"]
        if hunks is None:
            return [*index, *self._labels(), "Binary files differ\n"]
        return [*index, *self._labels(), hunks] if hunks else index

    def _blobs(self) -> tuple[str | None, str | None]:
        return self.before.blob if self.before else NO_BLOB, self.now.blob if self.now else NO_BLOB

    def _texts(self) -> tuple[bytes | None, bytes | None]:
        return self.before.text if self.before else b"", self.now.text if self.now else b""

    def _other_name(self) -> list[str]:
        names = f"rename from {_quoted(self.name)}\n", f"rename to {_quoted(self.new_name)}\n"
        return ["similarity index 100%\n", *names]

    def _labels(self) -> list[str]:
        label = _label(b"a/" + self.name) if self.before else "/dev/null"
        new_label = _label(b"b/" + self.new_name) if self.now else "/dev/null"
        return [f"--- {label}\n", f"+++ {new_label}\n"]


# --- names -----------------------------------------------------------------------------------


def _name(place: str, given: str, roots: dict[str, str | None]) -> bytes:
    """Return the name of the file at the path `place` in the diff: its path relative to the root of its repository.
    If the file is in no repository, return the path `given`. `roots` caches the roots of repositories.
    """
    root = _root(os.path.dirname(place), roots)
    return os.fsencode(given if root is None else os.path.relpath(place, root))


def _root(folder: str, roots: dict[str, str | None]) -> str | None:
    """Return the nearest directory that contains a `.git`: `folder` or a directory above it. Return None if no such
    directory exists. `roots` caches the results.
    """
    root, passed = folder, [folder]
    while root not in roots and not is_repository(root) and root != "/":
        root = os.path.dirname(root)
        passed.append(root)
    if root not in roots:
        roots[root] = root if is_repository(root) else None
    roots.update(dict.fromkeys(passed, roots[root]))
    return roots[folder]


ESCAPES: Final = {
    **{byte: f"\\{byte:03o}" for byte in (*range(0x20), *range(0x7F, 0x100))},
    **dict(zip(b'\a\b\t\n\v\f\r"\\', (rf"\{letter}" for letter in 'abtnvfr"\\'), strict=True)),
}


def _quoted(name: bytes) -> str:
    """Return a file name in Git's quoting: in double quotes with escapes if the name contains unusual
    characters.
    """
    escaped = "".join(ESCAPES.get(byte) or chr(byte) for byte in name)
    return escaped if len(escaped) == len(name) else f'"{escaped}"'


def _label(name: bytes) -> str:
    """Return a file name for a `---` or `+++` line. If the name contains spaces, a tab marks its end."""
    return _quoted(name) + ("\t" if b" " in name else "")


# --- files -----------------------------------------------------------------------------------


def _blob(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git_mode(mode: int) -> str:
    return "100755" if mode & stat.S_IXUSR else "100644"


def _read(folders: DirFds, place: str, *, limit: int) -> _Version | None:
    """Return the current version of a file; None if the file does not exist or is not a regular file. The content
    of a file that is larger than `limit` bytes is not read.
    """
    folder, name = os.path.split(place)
    try:
        inside = folders.open(folder)
        found = os.stat(name, dir_fd=inside, follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    try:
        content = folders.read_whole(place, at_most=limit)
    except OSError:
        content = None
    return _Version(None if content is None else _blob(content), _git_mode(found.st_mode), content)
