"""Resolves the paths that commands must not read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from parley.errors import SandboxUnavailable
from parley.sandbox.paths import innermost, mode_of, parents, real_path, sorted_by_depth
from parley.wire.text import quoted

__all__ = ["Hidden", "find_hidden", "refuse_creatable"]


class Hidden(NamedTuple):
    """The hidden files and directories of a sandbox policy that exist."""

    modes: dict[str, int]
    """The modes of the hidden files and directories, keyed by paths without symbolic links."""
    links: tuple[str, ...]
    """The configured hidden paths that contain symbolic links."""

    def outermost(self, roots: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the outermost hidden directories and the outermost hidden files. An outermost path lies in no
        other hidden directory.

        A root inside a hidden directory is visible, so the outermost hidden paths inside this root are returned as
        well.
        """
        marks = (*roots, *self.modes)
        paths = [path for path in self.modes if self._next_above(path, marks) not in self.modes]
        folders = sorted_by_depth(path for path in paths if stat.S_ISDIR(self.modes[path]))
        return folders, sorted_by_depth(path for path in paths if path not in folders)

    def _next_above(self, path: str, marks: Iterable[str]) -> str | None:
        return innermost(next(parents(path)), marks)


def find_hidden(paths: Iterable[str]) -> Hidden:
    """Return the hidden paths that exist.

    Raises:
        SandboxUnavailable: `/` is one of the paths, or a path cannot be examined.
    """
    real = {path: found for path in paths if (found := real_path(path)) is not None}
    modes = {path: mode for path in real.values() if (mode := mode_of(path)) is not None}
    if "/" in modes:
        raise SandboxUnavailable("`/` cannot be hidden")
    return Hidden(modes, tuple(path for path, found in real.items() if path != found))


def refuse_creatable(paths: Iterable[str], roots: tuple[str, ...]) -> None:
    """Check that no hidden path is a symbolic link to a missing file that a command could create.

    For example, if `config.toml` is a symbolic link to a missing file in a root, a command could create this file
    and thereby change the settings of the server.

    Raises:
        SandboxUnavailable: the target of a symbolic link does not exist and lies in a root.
    """
    for path in paths:
        if real_path(path) is None and os.path.islink(path):
            target = os.path.realpath(path)
            if (root := innermost(target, roots)) is not None:
                why = f"{quoted(path)} is a symbolic link to {quoted(target)}, which does not exist"
                raise SandboxUnavailable(
                    f"commands cannot write to {quoted(root)}: {why}; create the file or remove the symbolic link"
                )
