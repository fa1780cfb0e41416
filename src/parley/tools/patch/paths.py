"""Which file a patch means by a path, and which names it must never touch.

Looks at the directories that a path goes back from (`sub/..`), since behind a link that leads
elsewhere than the words say. What else stands there on disk is for `plan` to find out.
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
from parley.common.paths import is_below
from parley.config.protected import AGENTS, GIT
from parley.tools.errors import PatchRefused
from parley.wire.text import replace_surrogates

__all__ = ["PathResolver"]

_LONGEST: Final = 4096
"""Bytes of a path; the system takes no more."""

_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_IGNORABLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Code points that some file systems leave out when they compare names."""


class PathResolver:
    """The directories that paths are read from: the conversation's own, and that of one call."""

    def __init__(
        self,
        *,
        cwd: str,
        workdir: str,
        home: str | None = None,
        hidden: Sequence[str] = (),
        installed: Sequence[str] = (),
    ) -> None:
        """Parley's own files are in `home`, its programs are `installed`; what is `hidden` is not even read.

        Raises:
            PatchRefused: the call's directory is none, or somebody moves what is on the way to it about just now.
        """
        self._workdir = workdir
        self._installed = installed
        self._real_workdir = _real_directory(workdir)
        self.cwd = _real(cwd)
        called = {path: path for path in hidden} | ({} if home is None else {home: "Parley's home"})
        called |= dict.fromkeys(git_dirs(os.path.join(self.cwd, GIT)), GIT)
        self._protected = {_real(path): name for path, name in called.items()}
        """What each place is called that no patch may touch."""
        known = {cwd: self.cwd, workdir: self._real_workdir}
        plain = {os.path.normpath(name): real for name, real in known.items()}
        # Behind a link, `..` leads elsewhere than the words say: such a name is not understood in paths.
        links = [(name, real) for name, real in plain.items() if _real(name) == real]
        self._links = sorted(links, key=lambda link: -len(link[0]))
        """The two directories may be reached through links; what lies below them may not."""

    def shown(self, written: str) -> str:
        """A path of the patch as it is named to the model: absolute, otherwise as it was written."""
        return replace_surrogates(os.path.join(self._workdir, written))

    def resolve(self, written: str) -> str:
        """The absolute path of a file, from the real directory on.

        Raises:
            PatchRefused: this cannot be the name of a file, or it is one that no patch may touch.
        """
        if _UNPRINTABLE.search(written):
            raise PatchRefused(f"error: invalid path {dumps(written)}: it has control characters")
        if not written or written.endswith(("/", "/.", "/..")) or written in (".", ".."):
            raise PatchRefused(f"error: invalid path '{written}': it does not name a file")
        joined = os.path.join(self._real_workdir, written)
        if len(os.fsencode(joined)) >= _LONGEST:
            raise PatchRefused(f"error: invalid path '{written}': it is too long")
        path = self._absolute(joined, written)
        self._refuse_protected(path, written)
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
        # The conversation's own directory may well lie below `~/.codex`; nobody works inside `.git`.
        is_inside = is_below(path, self.cwd)
        inside = path[len(self.cwd) :] if is_inside else path
        for names, parts in (((GIT,), path), (AGENTS, inside)):
            for name in names:
                if any(_is_spelling(part, name) for part in parts.split("/")):
                    raise PatchRefused(f"error: {self.shown(written)} must not be changed: {name} is protected")
        if any(is_below(path, place) for place in self._installed):
            raise PatchRefused(
                f"error: {self.shown(written)} must not be changed: Parley itself is installed there"
            )
        for place, called in self._protected.items():
            works_there = is_inside and is_below(self.cwd, place)
            if is_below(path, place) and not works_there:
                name = replace_surrogates(called)
                raise PatchRefused(f"error: {self.shown(written)} must not be changed: {name} is protected")


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError as error:
        raise PatchRefused(f"error: {replace_surrogates(path)} cannot be looked at: {os_detail(error)}") from None


def _real_directory(workdir: str) -> str:
    if "\0" in workdir:
        raise PatchRefused(f"error: invalid working directory {dumps(workdir)}: it has control characters")
    try:
        if not stat.S_ISDIR(os.stat(workdir).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return os.path.realpath(workdir, strict=True)
    except OSError as error:
        raise PatchRefused(
            f"error: invalid working directory {replace_surrogates(workdir)}: {os_detail(error)}"
        ) from None


def _refuse_detours(path: str, written: str) -> None:
    """See that every directory that a path goes back from is one, and no link."""
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
            raise PatchRefused(
                f"error: invalid path '{written}': {replace_surrogates(folder)}: {os_detail(error)}"
            ) from None
        if not stat.S_ISDIR(mode):
            what = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
            raise PatchRefused(f"error: invalid path '{written}': {replace_surrogates(folder)} is {what}")
        del reached[-1:]


def _is_spelling(part: str, name: str) -> bool:
    """Whether some file system takes `part` for `name`."""
    short = f"{name[1:7]}~"
    for piece in re.split(r"[\\:]", _IGNORABLE.sub("", part)):
        plain = piece.rstrip(". \t").casefold()
        if plain == name or (plain.startswith(short) and plain[len(short) :].isdigit()):
            return True
    return False
