"""Fetches the branches of one conversation into the clone, and creates the clone."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from glob import glob
from typing import Final

from parley.config.types import Repository
from parley.errors import FETCH_FAILED
from parley.wire.events import WorkspaceUpdated
from parley.workspaces.clone import CONFIG, read_small_file, write_new_file
from parley.workspaces.git import NETWORK_SECONDS, Git, GitFailed
from parley.workspaces.names import branch_of
from parley.workspaces.paths import WorktreePaths
from parley.workspaces.worktree_git import WorktreeGit

__all__ = ["PUSH_SECONDS", "Fetcher"]

PUSH_SECONDS: Final = 120.0
"""The timeout, in seconds, for each Git command that contacts the repository, except the first fetch into a clone.
The timeout is short because other conversations that use the clone wait for a fetch.
"""


class Fetcher:
    """Fetches the branches that one conversation needs from the repository, and creates the clone if necessary."""

    def __init__(self, git: Git, worktree_git: WorktreeGit, paths: WorktreePaths, repository: Repository) -> None:
        self._plain_git, self._git, self._paths, self._repository = git, worktree_git, paths, repository
        self._base_name: str | None = None

    async def fetch(self, last: WorkspaceUpdated | None, head: str | None) -> tuple[str, str] | None:
        """Fetch the branches of the conversation. If `last` or `head` is None, fetch the base branch too.

        `last` is the last `workspace_updated` event of the conversation, and `head` is the commit of the worktree
        on this disk; None if there is none. Return None on success. If the fetch fails, but this disk has a
        worktree and the commit of `last`, return the error code and the error message.

        Raises:
            GitFailed: the fetch failed, and the turn cannot begin without it.
        """
        if not await asyncio.to_thread(os.path.isdir, self._paths.clone):
            await self._initialize()
        branches = {f"{branch_of(self._paths.conversation_id)}*"} | (
            {f"{last.branch}*"} if last is not None else set()
        )
        if head is None or last is None:
            branches.add(await self.base_branch())
        stale = await asyncio.to_thread(self._remove_tracking_refs)
        is_first = not await asyncio.to_thread(
            os.path.isdir, os.path.join(self._paths.clone, "refs/remotes/origin")
        )
        try:
            await self._git.network(
                "fetch",
                "--quiet",
                "--no-tags",
                "--no-write-fetch-head",
                "origin",
                *(f"+refs/heads/{branch}:refs/remotes/origin/{branch}" for branch in sorted(branches)),
                writes=("objects/pack", "refs"),
                seconds=NETWORK_SECONDS if is_first else PUSH_SECONDS,
            )
        except GitFailed as error:
            await asyncio.to_thread(self._restore_tracking_refs, stale)
            if last is None or head is None or not await self._git.has(last.commit):
                raise
            return FETCH_FAILED, str(error)
        return None

    def _remove_tracking_refs(self) -> dict[str, bytes]:
        """Remove the remote-tracking refs of this conversation's branches, and return their contents by path.

        The fetch creates these refs again for branches that still exist in the repository. `git fetch --prune` is
        not used, because it would need the permission to write to the main directory of the clone.
        """
        found: dict[str, bytes] = {}
        for path in glob(
            f"refs/remotes/origin/{branch_of(self._paths.conversation_id)}*", root_dir=self._paths.clone
        ):
            place = os.path.join(self._paths.clone, path)
            if not path.endswith(".lock") and (content := read_small_file(place)) is not None:
                found[place] = content
                os.unlink(place)
        return found

    def _restore_tracking_refs(self, refs: Mapping[str, bytes]) -> None:
        for place, content in refs.items():
            if not os.path.lexists(place):
                write_new_file(os.path.dirname(place), os.path.basename(place), content)

    async def _initialize(self) -> None:
        """Create an empty clone, completely or not at all."""
        partial = f"{self._paths.clone}.new"
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
        await asyncio.to_thread(os.mkdir, partial, 0o700)
        await self._plain_git.run(
            *("init", "--quiet", "--bare", "--template=", "--initial-branch=main", partial), writable=[partial]
        )
        await asyncio.to_thread(write_new_file, partial, "config", CONFIG)
        await asyncio.to_thread(os.makedirs, os.path.join(partial, "worktrees"))
        await asyncio.to_thread(os.rename, partial, self._paths.clone)

    async def base_branch(self) -> str:
        self._base_name = self._base_name or self._repository.branch or await self._default_branch()
        return self._base_name

    async def _default_branch(self) -> str:
        found = await self._git.network("ls-remote", "--symref", "origin", "HEAD", seconds=PUSH_SECONDS)
        for line in found.splitlines():
            if line.startswith("ref: refs/heads/") and line.endswith("\tHEAD"):
                return line.removeprefix("ref: refs/heads/").removesuffix("\tHEAD")
        raise GitFailed(
            "the repository has no default branch: set `branch` in the settings, or push a first commit"
        )

    async def tips(self) -> dict[str, str]:
        """Return the commits to which the branches in the repository pointed at the last fetch, keyed by branch
        name.
        """
        pattern = "refs/remotes/origin/"
        listed = await self._git.on_clone("for-each-ref", "--format=%(objectname) %(refname)", pattern)
        rows = (line.split(" ", 1) for line in listed.splitlines())
        return {name.removeprefix(pattern): commit for commit, name in rows}
