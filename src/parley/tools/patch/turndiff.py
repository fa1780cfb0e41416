"""What a turn has changed, as git would show it (docs/protocol.md, apply_patch).

Knows the files as they were before the turn's first patch, and reads them as they are now. Runs no
git, follows no symbolic link, and does not know who changed a file, nor how.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha1
from typing import Final, NamedTuple

from parley.tools.patch.diffs import STEPS, Effort, unified_diff

__all__ = ["TurnDiff"]

FILE_BYTES: Final = 16 << 20
"""A larger file is not read; it is shown like a binary one."""

TURN_BYTES: Final = 64 << 20
"""How much earlier content one turn keeps, and how much of the files one rendering reads. What goes
beyond is shown like binary files."""

CONTEXT_LINES: Final = 3

BINARY_BYTES: Final = 8000
"""A zero byte among the first of a file makes it a binary one, as for git."""

NO_BLOB: Final = "0" * 40


class TurnDiff:
    """The files that one turn has touched."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._before: dict[str, _Version | None] = {}
        """By place: the path with every link in front of the file's name resolved."""
        self._given: dict[str, str] = {}
        """The path as it was first given, by place."""
        self._origins: dict[str, str] = {}
        """The place that a moved file came from, by the place it went to."""
        self._room = TURN_BYTES

    def before(self, path: str, content: bytes | None, mode: int | None) -> None:
        """Note a file that is about to change; content and mode are None if there is none yet.

        Only the first call for a file counts.
        """
        place = self._place(path)
        if place in self._before:
            return
        self._given[place] = os.path.join(self._cwd, path)
        if content is None:
            self._before[place] = None
            return
        kept = len(content) <= min(FILE_BYTES, self._room)
        self._before[place] = _Version(_blob(content), _git_mode(mode or 0), content if kept else None)
        if kept:
            self._room -= len(content)

    def moved(self, path: str, new_path: str) -> None:
        """Note that a file has changed its name: it is shown once, with both names.

        Both paths were given to `before`. Without this, a deletion and a new file are shown.
        """
        place = self._place(path)
        self._origins[self._place(new_path)] = self._origins.pop(place, place)

    def render(self) -> str:
        """All differences between then and now, sorted by path; empty if there are none."""
        sections: list[str] = []
        steps = 2 * STEPS
        for change in sorted(self._changes(), key=lambda change: change.new_name):
            # Half of what is left: files that are hard to compare cannot leave the next without any.
            effort = Effort(steps // 2)
            sections.append(change.rendered(effort))
            steps -= steps // 2 - effort.left
        return "".join(sections)

    def _place(self, path: str) -> str:
        folder, name = os.path.split(os.path.join(self._cwd, path))
        return os.path.join(os.path.realpath(folder), name)

    def _changes(self) -> list[_Change]:
        now = _read_all(self._before)
        roots: dict[str, str | None] = {}
        names = {place: _name(place, self._given[place], roots) for place in self._before}

        changes: list[_Change] = []
        moved: set[str] = set()
        for new_place, place in self._origins.items():
            before = self._before.get(place)
            gone = before is not None and now[place] is None and place not in moved
            if gone and self._before.get(new_place) is None and now.get(new_place) is not None:
                changes.append(_Change(names[place], names[new_place], before, now[new_place]))
                moved |= {place, new_place}
        changes += [
            _Change(names[place], names[place], before, now[place])
            for place, before in self._before.items()
            if place not in moved
        ]
        return changes


class _Version(NamedTuple):
    """A file at one moment."""

    blob: str | None
    """The name that git has for the content; None: it was not read."""
    mode: str
    content: bytes | None
    """None: it was not read, or not kept."""

    @property
    def text(self) -> bytes | None:
        """What can be shown line by line; None for a binary file."""
        return None if self.content is None or b"\0" in self.content[:BINARY_BYTES] else self.content


class _Change(NamedTuple):
    """One file then and now; None: there was none, or there is none."""

    name: bytes
    new_name: bytes
    before: _Version | None
    now: _Version | None

    def rendered(self, effort: Effort) -> str:
        """Everything about it, or nothing if it is the same."""
        lines = [*self._modes(), *self._body(effort)]
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

    def _body(self, effort: Effort) -> list[str]:
        blob = self.before.blob if self.before else NO_BLOB
        new_blob = self.now.blob if self.now else NO_BLOB
        if blob == new_blob is not None:
            return self._other_name() if self.name != self.new_name else []

        index = [] if blob is None or new_blob is None else [f"index {blob}..{new_blob}\n"]
        text = self.before.text if self.before else b""
        new_text = self.now.text if self.now else b""
        if text is None or new_text is None:
            return [*index, *self._labels(), "Binary files differ\n"]
        hunks = unified_diff(text, new_text, context=CONTEXT_LINES, effort=effort)
        return [*index, *self._labels(), hunks] if hunks else index

    def _other_name(self) -> list[str]:
        names = f"rename from {_quoted(self.name)}\n", f"rename to {_quoted(self.new_name)}\n"
        return ["similarity index 100%\n", *names]

    def _labels(self) -> list[str]:
        label = _label(b"a/" + self.name) if self.before else "/dev/null"
        new_label = _label(b"b/" + self.new_name) if self.now else "/dev/null"
        return [f"--- {label}\n", f"+++ {new_label}\n"]


# --- names -----------------------------------------------------------------------------------


def _name(place: str, given: str, roots: dict[str, str | None]) -> bytes:
    """The path from the root of the file's repository; outside of one, the path as it was given."""
    root = _root(os.path.dirname(place), roots)
    return os.fsencode(given if root is None else os.path.relpath(place, root))


def _root(folder: str, roots: dict[str, str | None]) -> str | None:
    """The nearest folder upwards that has a `.git`; `roots` remembers what was looked up before."""
    root, passed = folder, [folder]
    while root not in roots and not os.path.lexists(os.path.join(root, ".git")) and root != "/":
        root = os.path.dirname(root)
        passed.append(root)
    if root not in roots:
        roots[root] = root if os.path.lexists(os.path.join(root, ".git")) else None
    roots.update(dict.fromkeys(passed, roots[root]))
    return roots[folder]


ESCAPES: Final = {
    **{byte: f"\\{byte:03o}" for byte in (*range(0x20), *range(0x7F, 0x100))},
    **dict(zip(b'\a\b\t\n\v\f\r"\\', (rf"\{letter}" for letter in 'abtnvfr"\\'), strict=True)),
}


def _quoted(name: bytes) -> str:
    """In quotes and with escapes, if anything in it is unusual."""
    escaped = "".join(ESCAPES.get(byte) or chr(byte) for byte in name)
    return escaped if len(escaped) == len(name) else f'"{escaped}"'


def _label(name: bytes) -> str:
    """The name where a line ends with it; a tab shows where it ends if there are blanks in it."""
    return _quoted(name) + ("\t" if b" " in name else "")


# --- files -----------------------------------------------------------------------------------


def _blob(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git_mode(mode: int) -> str:
    return "100755" if mode & stat.S_IXUSR else "100644"


def _read_all(places: dict[str, _Version | None]) -> dict[str, _Version | None]:
    now: dict[str, _Version | None] = {}
    room = TURN_BYTES
    for place in sorted(places):
        now[place] = version = _read(place, limit=min(FILE_BYTES, room))
        if version is not None and version.content is not None:
            room -= len(version.content)
    return now


def _read(place: str, *, limit: int) -> _Version | None:
    """The file as it is now; None if there is none, or something else than a regular file."""
    try:
        folder = _open_folder(os.path.dirname(place))
    except OSError:
        return None
    try:
        return _read_in(folder, os.path.basename(place), limit=limit)
    finally:
        os.close(folder)


def _open_folder(path: str) -> int:
    """A descriptor of the folder, if no part of the path is a symbolic link by now."""
    flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
    folder = os.open("/", flags)
    for part in path.split("/"):
        if part:
            outer = folder
            try:
                folder = os.open(part, flags, dir_fd=outer)
            finally:
                os.close(outer)
    return folder


def _read_in(folder: int, name: str, *, limit: int) -> _Version | None:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    mode = _git_mode(info.st_mode)
    if info.st_size > limit:
        return _Version(None, mode, None)
    try:
        # Something else may stand there by now, and opening it must neither wait nor go elsewhere.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
        with open(descriptor, "rb") as file:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(info.st_size + 1) if regular else b""
    except OSError:
        return _Version(None, mode, None)
    if len(content) > info.st_size:  # it grows while it is read
        return _Version(None, mode, None)
    return _Version(_blob(content), mode, content) if regular else None
