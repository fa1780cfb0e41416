"""Prepares the worktree of one conversation before a turn, and saves it after the turn."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from parley.common.os_errors import os_detail
from parley.config.types import Repository, WorkspaceSettings
from parley.errors import BRANCH_DIVERGED, COMMIT_FAILED, PUSH_FAILED, WORK_SET_ASIDE
from parley.wire.events import WorkspaceUpdated
from parley.workspaces.checkout import Checkout, completed
from parley.workspaces.clone import check_worktree
from parley.workspaces.commits import Commits, listed_paths
from parley.workspaces.fetching import PUSH_SECONDS, Fetcher
from parley.workspaces.git import LOCAL_SECONDS, Git, GitFailed
from parley.workspaces.inspection import UnsafeWorktree
from parley.workspaces.locks import remove_locks
from parley.workspaces.names import commit_message, is_from_parley
from parley.workspaces.paths import USED, WorktreePaths
from parley.workspaces.removal import move_away
from parley.workspaces.start import Start, choose_start
from parley.workspaces.worktree_git import WorktreeGit

__all__ = ["Worktree"]

log: Final = logging.getLogger(__name__)

URGENT_SECONDS: Final = 10.0
"""The timeout, in seconds, for each Git command that saves the worktree when a shutdown has ended the turn."""


class Worktree:
    """The worktree of one conversation, and the clone to which it belongs."""

    def __init__(
        self,
        git: Git,
        paths: WorktreePaths,
        name: str,
        repository: Repository,
        workspace: WorkspaceSettings,
        node: str | None,
    ) -> None:
        self.paths, self._name, self._node = paths, name, node
        self._git = WorktreeGit(git, paths)
        self._checkout = Checkout(self._git, paths)
        self._fetcher = Fetcher(git, self._git, paths, repository)
        self._commits = Commits(self._git, self._checkout, paths, workspace.author)

    async def prepare(self, last: WorkspaceUpdated | None) -> WorkspaceUpdated | None:
        """Check out the newest commit of the conversation. `last` is the last `workspace_updated` event in the log;
        None if there is none. Return the event to append to the log; None if `last` still describes the worktree.

        Raises:
            GitFailed: the worktree cannot be prepared.
            OSError: a file cannot be read or written.
        """
        if last is not None and (last.repository != self._name or not is_from_parley(last.branch, last.commit)):
            last = None
        await asyncio.to_thread(remove_locks, self.paths)
        moved = await self._checkout.finish()
        head = await self._git.head() if await asyncio.to_thread(self._checkout.exists) else None
        problem = await self._fetcher.fetch(last, head)
        tips, base = await self._fetcher.tips(), head
        if head is None or last is None:
            base = tips[await self._fetcher.base_branch()]  # the fetch fails if there is no such branch
        start = await choose_start(
            self.paths.conversation_id,
            last,
            tips=tips,
            base=base or "",
            head=head,
            has_last=last is not None
            and (last.commit in (head, *tips.values()) or await self._git.has(last.commit)),
            is_ancestor=self._git.is_ancestor,
        )
        code, message = (start.code, start.message) if start.code is not None or problem is None else problem
        kept = [] if moved is None else [_moved_to(moved)]
        if head is None:
            await self._checkout.create(start)
        else:
            kept += await self._move(head, start)
        if kept:
            code, message = WORK_SET_ASIDE, "; ".join(kept)
        self.paths.note_use()
        is_pushed = start.commit in tips.values() or await self._git.is_in_repository(start.commit)
        event = self._event(start.commit, start.branch, pushed=is_pushed, code=code, message=message)
        return None if code is None and event == _plain(last) else event

    async def _move(self, head: str, start: Start) -> list[str]:
        """Change the worktree from its commit `head` to the start of the turn.

        Return sentences for clients. The sentences name each ref and directory where the server saved work that is
        not in the commit of `start`.
        """
        await asyncio.to_thread(self._checkout.restore_pointer, self.paths.tree)
        if head == start.commit:
            if await asyncio.to_thread(self._checkout.branch) != start.branch:
                await self._checkout.point(start)
            return []
        is_safe, commit = True, head
        try:
            made, _, _ = await self._commits.commit(head, "Work that was set aside")
            commit = made or head
        except UnsafeWorktree as error:
            log.warning("the worktree of %s is created again: %s", self.paths.conversation_id, error)
            is_safe = False
        kept = []
        if not await self._git.is_ancestor(commit, start.commit):
            ref = f"refs/parley/kept/{self.paths.conversation_id}/{commit[:12]}"
            await self._git.on_clone("update-ref", ref, commit, writes=("refs",))
            kept.append(f"work that was not pushed is stored in the clone as {ref}")
        moved = await (self._change_files(start) if is_safe else self._checkout.create(start))
        return kept if moved is None else [*kept, _moved_to(moved)]

    async def _change_files(self, start: Start) -> str | None:
        try:
            return await self._checkout.check_out(start)
        except (GitFailed, OSError) as error:
            why = error if isinstance(error, GitFailed) else os_detail(error)
            log.warning("the worktree of %s is created again: %s", self.paths.conversation_id, why)
            await completed(self._checkout.return_worktree)
            return await self._checkout.create(start)

    # --- after a turn ------------------------------------------------------------------

    async def save(self, last: WorkspaceUpdated, text: str, *, is_urgent: bool) -> WorkspaceUpdated | None:
        """Commit the files and push the branch. `last` is the last `workspace_updated` event in the log. `text` is
        the message or title from which the commit message is made. If `is_urgent` is True, the timeouts are short.

        Return the event to append to the log; None if nothing has changed. If the push fails, the event describes
        the failure.

        Raises:
            GitFailed: the files cannot be committed.
            OSError: a file cannot be read or written.
        """
        seconds = URGENT_SECONDS if is_urgent else LOCAL_SECONDS
        await asyncio.to_thread(check_worktree, self.paths.tree)
        if not await asyncio.to_thread(self._checkout.exists):
            raise GitFailed("the worktree is incomplete, because its checkout was interrupted")
        head = await self._git.head()
        code = message = None
        made, problem, nested = await self._commits.commit(
            head, commit_message(text, self.paths.conversation_id), seconds=seconds
        )
        if made is not None:
            await self._git.on_clone(
                "update-ref", f"refs/heads/{last.branch}", made, head, writes=("refs",), seconds=seconds
            )
        head = made or head
        if problem is not None:
            code, message = COMMIT_FAILED, problem
        elif nested:
            message = f"Git repositories in the worktree are not committed: {listed_paths(nested)}"
        self.paths.note_use()
        if code is None and head == last.commit and last.pushed:
            return None if message is None or message == last.message else replace(last, message=message)
        branch, is_pushed = last.branch, True
        try:
            branch = await self._commits.push(head, branch, URGENT_SECONDS if is_urgent else PUSH_SECONDS)
        except GitFailed as error:
            code, message = code or PUSH_FAILED, message or str(error)
            is_pushed = await self._git.is_in_repository(head)
        if branch != last.branch and code is None:
            code, message = BRANCH_DIVERGED, f"the branch {last.branch} in the repository has other commits"
        return self._event(head, branch, pushed=is_pushed, code=code, message=message)

    # --- unused worktrees --------------------------------------------------------------

    def used_at(self) -> float:
        """Return the time of the last use of the worktree, in seconds since the epoch."""
        try:
            return os.lstat(os.path.join(self.paths.admin, USED)).st_mtime
        except OSError:
            return time.time()  # the worktree is still being created

    async def is_pushed(self) -> bool:
        """Return whether the repository contains all files of the worktree that Git does not ignore."""
        await self._checkout.finish()
        if not await asyncio.to_thread(os.path.lexists, self.paths.tree):
            return True
        await asyncio.to_thread(check_worktree, self.paths.tree)
        if not await asyncio.to_thread(self._checkout.exists):
            return False
        head = await self._git.head()
        if not (await self._commits.changes()).is_empty:
            return False
        tree = await self._git.on_tree("write-tree")
        if tree != await self._git.on_clone("rev-parse", "--verify", f"{head}^{{tree}}"):
            return False
        return not await self._git.on_clone("rev-list", "--max-count=1", head, "--not", "--remotes=origin")

    def move_away(self) -> None:
        """Rename the worktree and its administrative directory, so that `begin_deletion` deletes them."""
        move_away(self.paths)

    def _event(
        self, commit: str, branch: str, *, pushed: bool, code: str | None, message: str | None
    ) -> WorkspaceUpdated:
        return WorkspaceUpdated(
            repository=self._name,
            branch=branch,
            commit=commit,
            pushed=pushed,
            node=self._node or UNSET,
            code=code or UNSET,
            message=message or UNSET,
        )


def _plain(last: WorkspaceUpdated | None) -> WorkspaceUpdated | None:
    return None if last is None else replace(last, code=UNSET, message=UNSET)


def _moved_to(directory: str) -> str:
    return f"files that were in no commit were moved to worktrees/{os.path.basename(directory)}"
