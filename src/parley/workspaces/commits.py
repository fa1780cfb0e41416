"""Commits the files of a worktree, and pushes the commits."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from parley.wire.text import listed as list_of
from parley.wire.text import quoted
from parley.workspaces.changes import LIST, Changes, changes_in
from parley.workspaces.checkout import Checkout
from parley.workspaces.clone import add_objects
from parley.workspaces.git import LOCAL_SECONDS, GitFailed
from parley.workspaces.inspection import UnsafeWorktree, nested_repositories
from parley.workspaces.listings import LIST_INDEX, ListedFile, index_files
from parley.workspaces.names import next_branch
from parley.workspaces.paths import WorktreePaths
from parley.workspaces.start import Start
from parley.workspaces.worktree_git import WorktreeGit

__all__ = ["Commits", "listed_paths"]

MAX_BRANCHES: Final = 5
"""The maximum number of branches that one push tries. If a branch has diverged, the push tries the next branch."""
MAX_UNREADABLE: Final = 20
"""The maximum number of files in a worktree that Git may fail to read without making the commit fail."""
MAX_NESTED: Final = 200
"""The maximum number of Git repositories inside a worktree. The number is limited because the paths of these
repositories are arguments of a Git command.
"""

_LOOSE: Final = ("-c", "core.bigFileThreshold=1024g")
"""The Git options that make Git store each large file as a loose object instead of in a pack."""


class Commits:
    """Commits and pushes the files of one worktree."""

    def __init__(self, git: WorktreeGit, checkout: Checkout, paths: WorktreePaths, author: str) -> None:
        self._git, self._checkout, self._paths, self._author = git, checkout, paths, author

    async def commit(
        self, head: str, message: str, *, seconds: float = LOCAL_SECONDS
    ) -> tuple[str | None, str | None, tuple[str, ...]]:
        """Create a commit of all files that Git does not ignore, and add the commit to the clone. `head` is the
        parent of the commit. `seconds` is the timeout of each Git command.

        The first result is the id of the commit; None if nothing has changed. The second result is a message for
        clients that names the files that could not be read and were not committed; None if all files could be read.
        The third result contains the paths of the Git repositories inside the worktree, which were not committed.

        Raises:
            GitFailed: nothing was committed.
        """
        changes = await self.changes(seconds)
        unreadable = [*changes.unreadable, *await self._stage(changes.paths, seconds)]
        problem = (
            f"files that cannot be read were not committed: {listed_paths(unreadable)}" if unreadable else None
        )
        tree = await self._git.on_tree("write-tree", seconds=seconds)
        if tree == await self._git.on_clone("rev-parse", "--verify", f"{head}^{{tree}}", seconds=seconds):
            return None, problem, changes.nested
        name, _, address = self._author.rpartition(" <")
        who = ("-c", f"user.name={name}", "-c", f"user.email={address.removesuffix('>')}")
        commit = await self._git.on_tree(*who, "commit-tree", "-p", head, "-m", message, tree, seconds=seconds)
        await asyncio.to_thread(add_objects, self._paths.objects, self._paths.clone)
        return commit, problem, changes.nested

    async def changes(self, seconds: float = LOCAL_SECONDS) -> Changes:
        """Return the differences between the worktree and its index. `seconds` is the timeout of each Git command.

        Git does not read repositories inside the worktree, because their files could make Git wait forever.

        Raises:
            UnsafeWorktree: Git must not read the worktree.
            GitFailed: the differences cannot be determined.
        """
        nested = await asyncio.to_thread(nested_repositories, self._paths.tree)
        files = await self._index_files(seconds) if nested else {}
        submodules = [path for path in nested if path in files and files[path].is_submodule]
        others = _without_tracked(nested, files)
        if len(submodules) + len(others) > MAX_NESTED:
            raise UnsafeWorktree(f"the worktree contains more than {MAX_NESTED} Git repositories")
        index = await self._index_without(submodules, seconds) if submodules else None
        exclude = [f"--exclude={_pattern(path)}" for path in (*submodules, *others)]
        listed = await self._git.on_tree(*LIST, *exclude, index=index, seconds=seconds, is_list=True)
        changes = await asyncio.to_thread(changes_in, self._paths.tree, listed)
        if others:
            found = dict.fromkeys((*changes.nested, *await self._not_ignored(others, seconds)))
            changes = replace(changes, nested=tuple(found))
        if not changes.replaced:
            return changes
        files = files or await self._index_files(seconds)
        # The directories of submodules are not changed.
        replaced = tuple(path for path in changes.replaced if not (path in files and files[path].is_submodule))
        # Git removes a file from the index before it adds files of the directory in its place.
        return replace(changes, replaced=(), paths=replaced + changes.paths)

    async def _index_files(self, seconds: float) -> dict[str, ListedFile]:
        return index_files(await self._git.on_tree(*LIST_INDEX, seconds=seconds, is_list=True))

    async def _index_without(self, submodules: Sequence[str], seconds: float) -> str:
        """Create a copy of the index without the given submodules, and return the path of the copy. `seconds` is
        the timeout of the Git command.
        """
        copy = os.path.join(self._paths.admin, "parley-index")
        await asyncio.to_thread(shutil.copyfile, os.path.join(self._paths.admin, "index"), copy)
        stdin = "".join(f"{path}\0" for path in submodules).encode(errors="surrogateescape")
        remove = ("update-index", "-z", "--force-remove", "--stdin")
        await self._git.on_tree(*remove, index=copy, seconds=seconds, stdin=stdin)
        return copy

    async def _not_ignored(self, paths: Sequence[str], seconds: float) -> list[str]:
        stdin = "".join(f"{path}\0" for path in paths).encode(errors="surrogateescape")
        check = ("check-ignore", "--no-index", "-z", "--stdin")
        listed = await self._git.on_tree(*check, seconds=seconds, stdin=stdin, is_list=True, exit_codes=(0, 1))
        ignored = set(listed.split("\0"))
        return [path for path in paths if path not in ignored]

    async def _stage(self, paths: tuple[str, ...], seconds: float) -> list[str]:
        """Add the changes of the given files to the index, and remove deleted files from it. Return the files that
        Git cannot read.

        Raises:
            GitFailed: more than `MAX_UNREADABLE` files cannot be read, or the Git command failed for another
                reason.
        """
        left, failed = list(paths), list[str]()
        while left:
            stdin = "".join(f"{path}\0" for path in left).encode(errors="surrogateescape")
            update = (*_LOOSE, "update-index", "-z", "--add", "--remove", "--replace", "--stdin")
            try:
                await self._git.on_tree(*update, seconds=seconds, stdin=stdin)
            except GitFailed as error:
                bad = [path for path in left if str(error).endswith(f"Unable to process path {_shown(path)}")]
                if not bad or len(failed) >= MAX_UNREADABLE:
                    raise
                failed += bad
                left = [path for path in left if path not in bad]
            else:
                break
        return failed

    async def push(self, commit: str, branch: str, seconds: float) -> str:
        """Push a commit to a branch, without force. If the branch has diverged, try the following branch names (see
        `next_branch`). `seconds` is the timeout of each push.

        Return the branch to which the commit was pushed.

        Raises:
            GitFailed: the commit was not pushed.
        """
        wanted = branch
        for _ in range(MAX_BRANCHES):
            try:
                await self._git.network(
                    *("push", "--quiet", "--porcelain", "--no-verify", "origin", f"{commit}:refs/heads/{branch}"),
                    writes=("refs",),
                    seconds=seconds,
                    stdout_on_error=True,
                )
            except GitFailed as error:
                if not any(f"({why})" in str(error) for why in ("fetch first", "non-fast-forward")):
                    raise
                branch = next_branch(branch)
            else:
                if branch != wanted:
                    await self._checkout.point(Start(commit=commit, branch=branch))
                return branch
        raise GitFailed(f"git push: {MAX_BRANCHES} branches of the conversation have diverged")


def listed_paths(paths: Sequence[str]) -> str:
    """Return the paths, each in quotes, as a list for a message to clients. A long list is shortened."""
    return list_of([*map(quoted, paths)])


def _shown(path: str) -> str:
    """Return a path as it appears in the error messages of `Git.run`."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", path.encode(errors="surrogateescape").decode(errors="replace"))


def _pattern(path: str) -> str:
    """Return a `.gitignore` pattern that matches only the directory `path`."""
    return "/" + re.sub(r"([\\*?\[])", r"\\\1", path) + "/"


def _without_tracked(nested: Iterable[str], files: Mapping[str, ListedFile]) -> tuple[str, ...]:
    """Return the repositories in `nested` that contain no file of the index. Omit repositories that are inside
    another returned repository. `files` contains the files of the index.

    Git does not look for a repository in a directory that contains files of the index.
    """
    ordered = sorted(files)
    found: list[str] = []
    for path in nested:
        after = ordered[(first := bisect_left(ordered, f"{path}/")) : first + 1]
        has_tracked = path in files or any(one.startswith(f"{path}/") for one in after)
        if not has_tracked and not any(path.startswith(f"{one}/") for one in found):
            found.append(path)
    return tuple(found)
