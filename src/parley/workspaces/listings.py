"""Parses lists of the files in an index or a commit, and compares the files of a worktree with these lists."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

__all__ = [
    "LIST_INDEX",
    "LIST_MODIFIED",
    "ListedFile",
    "files_in_tree",
    "index_files",
    "list_tree",
    "unsaved_paths",
]

LIST_INDEX: Final = ("ls-files", "-z", "--stage")
"""The arguments of the Git command that lists the files of an index. `index_files` parses its output."""
LIST_MODIFIED: Final = ("ls-files", "-z", "--modified")
"""The arguments of the Git command that lists the files that differ from the index."""

_SUBMODULE: Final = "160000"
_LINK: Final = "120000"
_PIECE_BYTES: Final = 1024 * 1024
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ListedFile(Struct, frozen=True):
    """A file in an index or a commit."""

    mode: str
    object_id: str

    @property
    def is_submodule(self) -> bool:
        return self.mode == _SUBMODULE


def list_tree(commit: str) -> tuple[str, ...]:
    """Return the arguments of the Git command that lists the files of `commit`. `files_in_tree` parses its
    output.
    """
    return ("ls-tree", "-r", "-z", "--full-tree", commit)


def index_files(listed: str) -> dict[str, ListedFile]:
    """Return the files of an index by path. `listed` is the output of Git with the arguments `LIST_INDEX`."""
    return _files(listed, id_column=1)


def files_in_tree(listed: str) -> dict[str, ListedFile]:
    """Return the files of a commit by path. `listed` is the output of Git with the arguments that
    `list_tree` returns.
    """
    return _files(listed, id_column=2)


def _files(listed: str, *, id_column: int) -> dict[str, ListedFile]:
    files = {}
    for row in filter(None, listed.split("\0")):
        about, _, path = row.partition("\t")
        columns = about.split(" ")
        files[path] = ListedFile(columns[0], columns[id_column])
    return files


def unsaved_paths(
    worktree: str, index: Mapping[str, ListedFile], modified: Iterable[str], target: Mapping[str, ListedFile]
) -> tuple[str, ...]:
    """Return the files and directories that a checkout of the files `target` would remove or overwrite, although
    neither the index nor `target` contains their content.

    `index` contains the files of the index, and `modified` contains the paths of those files that differ in the
    worktree. No other process may change the worktree during the call.
    """
    changed = set(modified)
    found: dict[str, None] = {}
    for path in sorted(changed | (target.keys() - index.keys())):
        place = _obstacle(worktree, path)
        if place is None or (place in index and place not in changed):
            continue
        full = os.path.join(worktree, place)
        if os.path.isdir(full) and not os.path.islink(full):
            wanted = target.get(place)
            if (wanted is not None and wanted.is_submodule) or _contains_only(worktree, place, index, changed):
                continue
        elif place in target and _has_content(full, target[place]):
            continue  # an earlier attempt of the checkout has written this file
        found[place] = None
    return tuple(found)


def _obstacle(worktree: str, path: str) -> str | None:
    """Return the path of an existing file or directory that prevents the creation of `path`: `path` itself, or a
    parent of `path` that is not a directory. Return None if `path` can be created.
    """
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        place = "/".join(parts[:end])
        try:
            is_directory = stat.S_ISDIR(os.lstat(os.path.join(worktree, place)).st_mode)
        except FileNotFoundError:
            return None
        if not is_directory:
            return place
    return path


def _contains_only(worktree: str, folder: str, index: Mapping[str, ListedFile], changed: set[str]) -> bool:
    """Return whether the directory `folder` of a worktree contains only files in `index` that are not in `changed`.
    All paths are relative to the worktree.
    """
    for parent, folders, files in os.walk(os.path.join(worktree, folder)):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*files, *links):
            path = os.path.relpath(os.path.join(parent, name), worktree)
            if path not in index or path in changed:
                return False
    return True


def _has_content(path: str, wanted: ListedFile) -> bool:
    """Return whether a file has the content of the listed file `wanted`. Line endings are not converted before the
    comparison.
    """
    digest = hashlib.sha1(usedforsecurity=False) if len(wanted.object_id) == 40 else hashlib.sha256()
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        content = os.fsencode(os.readlink(path))
        digest.update(b"blob %d\0" % len(content) + content)
        return wanted.mode == _LINK and digest.hexdigest() == wanted.object_id
    if not stat.S_ISREG(found.st_mode) or wanted.mode == _LINK:
        return False
    try:
        descriptor = os.open(path, _READ)
    except PermissionError:
        return False
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return False
        digest.update(b"blob %d\0" % found.st_size)
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest() == wanted.object_id
