"""Resolves the paths of a patch, and checks that they are not protected.

The module examines the directories before a `..` in a path, because `..` after a symbolic link leads to a different
directory than the path suggests. `plan` checks the other properties of files.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from json import dumps
from typing import Final

from parley.common.git_files import git_dirs
from parley.common.os_errors import os_detail
from parley.common.paths import is_below, is_below_any
from parley.config.protected import AGENTS, GIT
from parley.tools.errors import PatchNotApplied
from parley.wire.text import replace_surrogates

__all__ = ["PathResolver"]

_MAX_BYTES: Final = 4096
"""The maximum length, in bytes, of a path that the system accepts."""

_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_IGNORABLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Code points that some file systems ignore when they compare names."""


class PathResolver:
    """Resolves the paths in a patch. Relative paths are relative to the working directory of the tool call."""

    def __init__(
        self,
        *,
        cwd: str,
        workdir: str,
        home: str | None,
        hidden: Sequence[str],
        installed: Sequence[str],
    ) -> None:
        """Create a resolver for which Parley's `home`, its `installed` programs and the `hidden` paths are
        protected. `cwd` is the working directory of the conversation, and `workdir` is the working directory of the
        tool call.

        Raises:
            PatchNotApplied: `workdir` is hidden, is not a directory, or cannot be resolved.
        """
        if "\0" in workdir:
            raise PatchNotApplied(f"error: invalid working directory {dumps(workdir)}: it has control characters")
        self._workdir = workdir
        self._installed = installed
        self.cwd = _real(cwd)
        names = {path: path for path in hidden} | ({} if home is None else {home: "Parley's home"})
        self._hidden = {_real(path): name for path, name in names.items()}
        """Maps the real path of each hidden file or directory to its name in error messages."""
        self._protected = self._hidden | {_real(path): GIT for path in git_dirs(os.path.join(self.cwd, GIT))}
        """Maps the real path of each protected file or directory to its name in error messages."""
        self._refuse_through_hidden(workdir, f"error: invalid working directory {replace_surrogates(workdir)}")
        self._real_workdir = _real_directory(workdir)
        known = {cwd: self.cwd, workdir: self._real_workdir}
        plain = {os.path.normpath(name): real for name, real in known.items()}
        # A path in which `..` follows a symbolic link is omitted, because `normpath` would change its meaning.
        links = [(name, real) for name, real in plain.items() if _real(name) == real]
        self._links = sorted(links, key=lambda link: -len(link[0]))
        """The normalised path and the real path of `cwd` and of `workdir`. If an absolute path in a patch begins
        with the normalised path, this beginning is replaced with the real path. The longest normalised path is
        first.
        """

    def shown(self, written: str) -> str:
        """Return `written`, a path in the patch, for an error message: absolute, but otherwise unchanged."""
        return replace_surrogates(os.path.join(self._workdir, written))

    def resolve(self, written: str) -> str:
        """Return the absolute path of a file from `written`, its path in the patch. If the path begins with `cwd`
        or `workdir`, this beginning is replaced with the real path of the directory.

        Raises:
            PatchNotApplied: the path does not name a file, or is protected.
        """
        if _UNPRINTABLE.search(written):
            raise PatchNotApplied(f"error: invalid path {dumps(written)}: it has control characters")
        if not written or written.endswith(("/", "/.", "/..")) or written in (".", ".."):
            raise PatchNotApplied(f"error: invalid path '{written}': it does not name a file")
        joined = os.path.join(self._real_workdir, written)
        if len(os.fsencode(joined)) >= _MAX_BYTES:
            raise PatchNotApplied(f"error: invalid path '{written}': it is too long")
        path = self._absolute(joined, written)
        self._refuse_protected(path, written)
        if ".." in joined.split("/"):
            self._refuse_through_hidden(joined, f"error: invalid path '{written}'")
            _refuse_detours(joined, written)
        return path

    def _absolute(self, joined: str, written: str) -> str:
        path = "/" + os.path.normpath(joined).lstrip("/")
        if os.path.isabs(written):
            for name, real in self._links:
                if is_below(path, name):
                    return real.rstrip("/") + path[len(name.rstrip("/")) :]
        return path

    def _refuse_protected(self, path: str, written: str) -> None:
        # The conversation's directory may lie below `~/.codex`, but not inside `.git`.
        is_inside = is_below(path, self.cwd)
        inside = path[len(self.cwd) :] if is_inside else path
        for names, parts in (((GIT,), path), (AGENTS, inside)):
            for name in names:
                if any(_is_spelling(part, name) for part in parts.split("/")):
                    raise PatchNotApplied(f"error: {self.shown(written)} must not be changed: {name} is protected")
        if is_below_any(path, self._installed):
            raise PatchNotApplied(
                f"error: {self.shown(written)} must not be changed: Parley itself is installed there"
            )
        for place, name in self._protected.items():
            contains_cwd = is_inside and is_below(self.cwd, place)
            if is_below(path, place) and not contains_cwd:
                raise PatchNotApplied(
                    f"error: {self.shown(written)} must not be changed: {replace_surrogates(name)} is protected"
                )

    def _refuse_through_hidden(self, path: str, failure: str) -> None:
        """Check that a path does not lead through a hidden directory.

        Raises:
            PatchNotApplied: the path leads through a hidden directory. The error begins with the text `failure` and
                does not show whether the file exists.
        """
        reached = "/"
        for part in path.split("/"):
            if part in ("", "."):
                continue
            place = os.path.join(reached, part)
            for hidden, name in self._hidden.items():
                contains_cwd = is_below(self.cwd, hidden) and (
                    is_below(place, self.cwd) or is_below(self.cwd, place)
                )
                if part != ".." and is_below(reached, hidden) and not contains_cwd:
                    raise PatchNotApplied(f"{failure}: {replace_surrogates(name)} is protected")
            reached = _real(place)


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError as error:
        raise PatchNotApplied(f"error: {replace_surrogates(path)} cannot be resolved: {os_detail(error)}") from None


def _real_directory(workdir: str) -> str:
    try:
        if not stat.S_ISDIR(os.stat(workdir).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return os.path.realpath(workdir, strict=True)
    except OSError as error:
        raise PatchNotApplied(
            f"error: invalid working directory {replace_surrogates(workdir)}: {os_detail(error)}"
        ) from None


def _refuse_detours(path: str, written: str) -> None:
    """Check that no `..` in a path follows a symbolic link or a file. `written` is the path as written in the
    patch.

    Raises:
        PatchNotApplied: a `..` follows a symbolic link, a file or a path that does not exist.
    """
    reached: list[str] = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            reached.append(part)
            continue
        folder = "/" + "/".join(reached)
        try:
            mode = os.lstat(folder).st_mode
        except OSError as error:
            raise PatchNotApplied(
                f"error: invalid path '{written}': {replace_surrogates(folder)}: {os_detail(error)}"
            ) from None
        if not stat.S_ISDIR(mode):
            what = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
            raise PatchNotApplied(f"error: invalid path '{written}': {replace_surrogates(folder)} is {what}")
        del reached[-1:]


def _is_spelling(part: str, name: str) -> bool:
    """Return whether some file system treats `part` and `name` as the same name."""
    short = f"{name[1:7]}~"
    for piece in re.split(r"[\\:]", _IGNORABLE.sub("", part)):
        plain = piece.rstrip(". \t").casefold()
        if plain == name or (plain.startswith(short) and plain[len(short) :].isdigit()):
            return True
    return False
