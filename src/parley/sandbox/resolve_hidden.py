"""Resolves the paths that commands must not read."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from typing import NamedTuple

from parley.errors import SandboxUnavailable
from parley.sandbox.paths import innermost, mode_of, parents, real_path, sorted_by_depth

__all__ = ["Hidden", "find_hidden"]


class Hidden(NamedTuple):
    """Hidden files and directories that exist."""

    modes: dict[str, int]
    """The modes of the hidden files and directories, keyed by paths without links."""
    links: tuple[str, ...]
    """The configured hidden paths that contain links."""

    def outermost(self, roots: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the hidden directories and files that no other hidden directory covers.

        A root inside a hidden directory is visible, so a hidden path inside that root is not covered.
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
