"""Finds the Git directories in writable roots, and the other files and directories that control Git."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct, field

from parley.common.git_files import common_dir, git_dir
from parley.common.paths import is_below_any
from parley.config.protected import GIT
from parley.errors import SandboxUnavailable
from parley.sandbox.paths import is_of_another_user, mode_of, parents, real_path, status_of
from parley.wire.text import quoted

__all__ = ["GitPaths", "find_git", "is_replaceable_git_of_another_user"]

_MAY_BE_LINKS: Final = ("config", "config.worktree", "hooks", "info")
"""Files and directories in a Git directory that control Git even if they are symbolic links."""


class GitPaths(Struct, kw_only=True):
    """The files and directories that control Git and that a command could change, because it may write to the roots
    that are passed to `find_git`. All paths except the paths in `links` are free of symbolic links.
    """

    directories: set[str] = field(default_factory=set)
    """The Git directories in the roots: each `.git` directory, and each directory that a `.git` file names."""
    files: set[str] = field(default_factory=set)
    """The `.git` files in the roots. Each of them names a Git directory."""
    missing: set[str] = field(default_factory=set)
    """Paths at the top level of the roots at which a `.git` directory is missing or empty."""
    links: list[str] = field(default_factory=list)
    """The symbolic links in `directories` that Git follows to a file or directory that controls Git."""
    targets: set[str] = field(default_factory=set)
    """The targets of the symbolic links in `links`, without targets that lie outside the roots."""


def find_git(roots: tuple[str, ...]) -> GitPaths:
    """Return the `.git` of each root, and the files that control Git. A `.git` that is itself a root is omitted,
    because the policy makes it writable.

    Raises:
        SandboxUnavailable: a `.git` is a symbolic link, or a directory that a `.git` file names cannot be
            protected.
    """
    found = GitPaths()
    for root in roots:
        git = os.path.join(root, GIT)
        if git not in roots:
            _add(git, root, roots, found)
    found.links = [
        path
        for git in found.directories
        for name in _MAY_BE_LINKS
        if os.path.islink(path := os.path.join(git, name))
    ]
    found.targets = set(_targets(found.links, roots))
    return found


def _add(git: str, root: str, roots: tuple[str, ...], found: GitPaths) -> None:
    mode = mode_of(git)
    if mode is None or _is_missing(git, mode):
        found.missing.add(git)
    elif is_of_another_user(git, status_of(root)):
        pass  # commands cannot replace it, and Git ignores repositories of other users
    elif stat.S_ISLNK(mode):
        raise SandboxUnavailable(f"{quoted(git)} is a symbolic link, and its target cannot be protected")
    elif stat.S_ISDIR(mode):
        found.directories.add(git)
    else:
        found.files.add(git)
        found.directories |= set(_named_by(git, roots))


def is_replaceable_git_of_another_user(root: str, folder: os.stat_result) -> bool:
    """Return whether a root contains a `.git` that belongs to another user and that a command could replace.
    `folder` is the status of the root.
    """
    git = os.path.join(root, GIT)
    is_sticky = folder.st_mode & stat.S_ISVTX and folder.st_uid != os.geteuid()
    return not is_sticky and is_of_another_user(git, folder) and not _is_missing(git, mode_of(git))


def _named_by(git: str, roots: tuple[str, ...]) -> Iterator[str]:
    """Yield the Git directories that the file `git` names, directly or through the file `commondir` of a worktree.
    Directories outside the roots are omitted.

    Raises:
        SandboxUnavailable: a command could replace one of these directories.
    """
    named = git_dir(git)
    folder = None if named is None else _resolved(named, git, roots)
    if folder is None:
        return
    shared = common_dir(folder)
    common = None if shared is None else _resolved(shared, git, roots)
    for path in (folder, common):
        if path is not None and path not in roots and is_below_any(path, roots):
            yield path


def _resolved(path: str, git: str, roots: tuple[str, ...]) -> str | None:
    """Return a path with symbolic links resolved; None if the path does not exist and no command can create it.

    `git` is the `.git` file that names the path.

    Raises:
        SandboxUnavailable: a command could replace the path.
    """
    path = os.path.normpath(path)
    real = real_path(path)
    is_replaceable = any(is_below_any(each, roots) for each in (path, real or path))
    has_links = any(os.path.islink(each) for each in (path, *parents(path)) if is_below_any(each, roots))
    if is_replaceable and (real is None or has_links):
        why = "which does not exist" if real is None else "through a symbolic link"
        raise SandboxUnavailable(f"{quoted(git)} leads to {quoted(path)}, {why}, and cannot be protected")
    return real


def _targets(links: Iterable[str], roots: tuple[str, ...]) -> Iterator[str]:
    """Yield the targets of the symbolic links `links`, without targets that lie outside the roots.

    Raises:
        SandboxUnavailable: a command could create or replace a target, or has just removed it.
    """
    for link in links:
        try:
            real = os.path.realpath(link)
        except OSError as error:
            raise SandboxUnavailable(f"{quoted(link)} cannot be examined: {error.strerror}") from None
        if is_below_any(real, roots):
            if real in roots or not os.path.lexists(real):
                raise SandboxUnavailable(f"{quoted(link)} leads to {quoted(real)}, which cannot be protected")
            yield real


def _is_missing(git: str, mode: int | None) -> bool:
    """Return whether a `.git` does not exist or is an empty directory, such as a placeholder. `mode` is the mode of
    the `.git`; None if it does not exist.
    """
    return mode is None or (stat.S_ISDIR(mode) and _is_empty(git))


def _is_empty(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True  # the directory was a placeholder, and another command has removed it
    except OSError:
        return False
