"""Resolves the directories that commands may write to (the roots), and finds Parley's installed files in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable

from parley.common.paths import is_below, is_below_any
from parley.errors import SandboxUnavailable
from parley.ports.commands import WritableRoot
from parley.sandbox.paths import innermost, real_path, sorted_by_depth, status_of
from parley.sandbox.resolve_git import is_replaceable_git_of_another_user
from parley.wire.text import quoted

__all__ = ["find_installed", "find_roots"]


def find_roots(roots: Iterable[WritableRoot], hidden: Collection[str]) -> tuple[str, ...]:
    """Return the paths of the roots that exist and are not hidden.

    A root in which a command could replace another user's `.git` is omitted.

    Raises:
        SandboxUnavailable: a root was replaced, or a root that must be omitted lies in another root.
    """
    paths = sorted_by_depth(root.path for root in roots if _exists(root) and root.path not in hidden)
    return tuple(root for root in paths if not _is_left_out(root, paths))


def find_installed(paths: Collection[str], roots: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the `paths` where Parley is installed that exist in the roots and contain no symbolic link. A
    path that lies below another returned path is omitted.

    Raises:
        SandboxUnavailable: a root is one of the `paths` or lies in one of them, or a command could create one of
            the `paths` that does not exist.
    """
    for root in roots:
        if (place := next((path for path in paths if is_below(root, path) and path != "/"), None)) is not None:
            why = f"Parley, or the Python that runs it, loads its modules from {quoted(place)}"
            raise SandboxUnavailable(f"commands cannot write to {quoted(root)}: {why}")
    inside = sorted_by_depth(path for path in paths if is_below_any(path, roots))
    existing = [path for path in inside if real_path(path) == path]
    outermost = [
        path for path in existing if not any(path != other and is_below(path, other) for other in existing)
    ]
    for path in inside:
        if real_path(path) is None and not is_below_any(path, outermost):
            why = f"the Python that runs Parley loads modules from {quoted(path)}, which does not exist"
            raise SandboxUnavailable(f"commands cannot write to {quoted(innermost(path, roots) or path)}: {why}")
    return tuple(outermost)


def _exists(root: WritableRoot) -> bool:
    """Return whether a writable root still exists.

    Raises:
        SandboxUnavailable: the root was replaced by another directory or a symbolic link, or cannot be examined.
    """
    try:
        found = os.lstat(root.path)
        real = os.path.realpath(root.path, strict=True)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SandboxUnavailable(f"{quoted(root.path)} cannot be examined: {error.strerror}") from None
    is_same = stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) == (root.device, root.inode)
    if real != root.path or not is_same:
        raise SandboxUnavailable(f"{quoted(root.path)} is no longer writable: it was replaced by another directory")
    return True


def _is_left_out(root: str, roots: Iterable[str]) -> bool:
    if not is_replaceable_git_of_another_user(root, status_of(root)):
        return False
    if any(root != other and is_below(root, other) for other in roots):
        git = os.path.join(root, ".git")
        raise SandboxUnavailable(f"{quoted(git)} belongs to another user, and cannot be protected")
    return True
