"""Manages the clones of the repositories, and a separate worktree for each conversation.

The directory in the settings contains `repositories/NAME.git`, which are bare clones, and `worktrees/ID`. Commands
of the model can write to their own worktree only. All Git commands name the clone explicitly, so the `.git` in a
worktree, which a command may have replaced, has no effect on them.

A Git command that reads or writes files of a worktree can write only to the administrative directory of this
worktree, `repositories/NAME.git/worktrees/ID`. It stores its objects there, and the server moves them to the clone.
While Git writes files of a worktree, the worktree is in this directory, where no command of a model can replace it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from glob import glob
from typing import Any, Final, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from parley.common.os_errors import os_detail
from parley.common.paths import is_below_any
from parley.common.shield import run_to_completion
from parley.config.types import Repository, Settings, WorkspaceSettings
from parley.errors import (
    BRANCH_DIVERGED,
    COMMIT_FAILED,
    FETCH_FAILED,
    PUSH_FAILED,
    WORK_SET_ASIDE,
    BadSetting,
    WorkspaceUnavailable,
)
from parley.ports.commands import CommandRunner
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import ConversationId
from parley.wire.text import listed, quoted
from parley.workspaces.changes import LIST, LIST_INDEX, Changes, changes_in, submodules_in
from parley.workspaces.clone import CONFIG, add_objects, check_clone, check_worktree, write_new_file
from parley.workspaces.git import LOCAL_SECONDS, NETWORK_SECONDS, Git, GitFailed, Remote, expanded
from parley.workspaces.names import branch_of, commit_message, is_from_parley, next_branch
from parley.workspaces.start import Start, choose_start

__all__ = ["GitWorktrees"]

log = logging.getLogger(__name__)

T = TypeVar("T")

URGENT_SECONDS: Final = 10.0
"""The timeout in seconds for each Git command at the end of a turn that a shutdown has ended."""
PUSH_SECONDS: Final = 120.0
"""The timeout for a push, and for a fetch that is not the first one of its clone, in seconds. Other conversations
wait for the fetch.
"""
LOCK_POLL_SECONDS: Final = 0.05
STALE_LOCK_SECONDS: Final = 600.0
"""The age in seconds at which a lock file of Git in a clone is removed. Git holds such a lock only for a moment."""
MAX_BRANCHES: Final = 5
"""The maximum number of branches to which one push is attempted, because earlier ones have diverged."""
COLLECT_SECONDS: Final = 3600.0
"""The minimum time in seconds between two searches for worktrees to remove."""

MAX_LIST_BYTES: Final = 256 * 1024 * 1024
"""The maximum size of a list of changed files."""
MAX_UNREADABLE: Final = 20
"""The maximum number of files that are left out of a commit because Git cannot read them."""

_LOOSE: Final = ("-c", "core.bigFileThreshold=1024g")
"""The Git options with which Git stores each large file as an object of its own, and not in a pack."""
_USED: Final = "parley-used"
"""The name of a file in the administrative directory of a worktree. Its modification time is the time of the last
use of the worktree.
"""
_CHECKOUT: Final = "parley-checkout"
"""The name of a file in the administrative directory of a worktree. It contains the commit and the branch to which
the files of the worktree are being changed, and is removed when all files have changed.
"""


class GitWorktrees:
    """An implementation of `Workspaces`: the worktrees of the conversations of this process."""

    def __init__(
        self,
        commands: CommandRunner,
        settings: Callable[[], WorkspaceSettings],
        environ: Mapping[str, str],
        *,
        node: Callable[[], str | None],
    ) -> None:
        """Create the object. `settings` returns the current settings, and `node` returns the id of this node; None
        if the process is not a node.
        """
        self._commands, self._settings, self._environ, self._node = commands, settings, environ, node
        self._locks: dict[str, asyncio.Lock] = {}
        self._collected = -COLLECT_SECONDS

    def directory_of(self, conversation_id: ConversationId) -> str:
        directory = expanded(self._settings().directory, self._environ)
        if directory is None:
            raise BadSetting("missing, and a conversation in a repository needs it", key="workspace.directory")
        return os.path.join(directory, "worktrees", conversation_id)

    async def prepare(
        self, conversation_id: ConversationId, settings: Settings, last: WorkspaceUpdated | None
    ) -> WorkspaceUpdated | None:
        name = settings.repository or ""
        try:
            tree = await self._worktree(conversation_id, settings)
            async with self._locked(tree.clone):
                return await tree.prepare(last)
        except GitFailed as error:
            raise WorkspaceUnavailable(name, str(error)) from None
        except OSError as error:
            raise WorkspaceUnavailable(name, os_detail(error)) from None

    async def save(
        self,
        conversation_id: ConversationId,
        settings: Settings,
        last: WorkspaceUpdated,
        message: str,
        *,
        is_urgent: bool,
    ) -> WorkspaceUpdated | None:
        try:
            tree = await self._worktree(conversation_id, settings)
            return await tree.save(last, message, is_urgent=is_urgent)
        except (GitFailed, WorkspaceUnavailable, BadSetting) as error:
            return replace(last, code=COMMIT_FAILED, message=str(error))
        except OSError as error:
            return replace(last, code=COMMIT_FAILED, message=os_detail(error))
        except Exception as error:
            log.error("the worktree of %s was not saved", conversation_id, exc_info=error)
            return replace(last, code=COMMIT_FAILED, message=f"internal error: {type(error).__name__}")

    async def _worktree(self, conversation_id: ConversationId, settings: Settings) -> _Worktree:
        name, workspace = settings.repository or "", self._settings()
        if (repository := workspace.repositories.get(name)) is None:
            raise WorkspaceUnavailable(name, "config.toml does not define it")
        path = self.directory_of(conversation_id)
        directory = os.path.dirname(os.path.dirname(path))
        await asyncio.to_thread(_make_directories, directory, settings.withheld_paths)
        remote = Remote.of(name, repository, self._environ)
        git = Git(self._commands, settings, remote, directory)
        tree = _Worktree(conversation_id, git, name, repository, workspace, path, self._node())
        if time.monotonic() - self._collected > COLLECT_SECONDS:
            self._collected = time.monotonic()
            await self._collect(tree, workspace.keep_days)
        return tree

    @asynccontextmanager
    async def _locked(self, clone: str) -> AsyncIterator[None]:
        """Hold the lock of a clone during the block. Other processes with the same directory wait for it."""
        async with self._locks.setdefault(clone, asyncio.Lock()):
            descriptor = os.open(f"{clone}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    await asyncio.sleep(LOCK_POLL_SECONDS)
                yield
            finally:
                os.close(descriptor)

    async def _collect(self, tree: _Worktree, keep_days: int) -> None:
        """Remove the worktrees of a repository that have been unused for `keep_days` days, if the repository
        contains their commits.
        """
        if keep_days and await asyncio.to_thread(os.path.isdir, tree.clone):
            async with self._locked(tree.clone):
                await tree.collect(time.time() - keep_days * 24 * 3600.0)


class _Worktree:
    """The worktree of one conversation, and the clone to which it belongs."""

    def __init__(
        self,
        conversation_id: ConversationId,
        git: Git,
        name: str,
        repository: Repository,
        workspace: WorkspaceSettings,
        path: str,
        node: str | None,
    ) -> None:
        self._id, self._git, self._name, self._repository = conversation_id, git, name, repository
        self._workspace, self._path, self._node = workspace, path, node
        directory = os.path.dirname(os.path.dirname(path))
        self._repositories, self._worktrees = (
            os.path.join(directory, sub) for sub in ("repositories", "worktrees")
        )
        self.clone = os.path.join(self._repositories, f"{name}.git")
        self._admin = os.path.join(self.clone, "worktrees", conversation_id)
        self._objects, self._inside = (os.path.join(self._admin, name) for name in ("objects", "tree"))
        self._base_name: str | None = None

    # --- before a turn -----------------------------------------------------------------

    async def prepare(self, last: WorkspaceUpdated | None) -> WorkspaceUpdated | None:
        """Bring the worktree to the newest commit of the conversation. The result and the errors are those of
        `Workspaces.prepare`.
        """
        if last is not None and (last.repository != self._name or not is_from_parley(last.branch, last.commit)):
            last = None
        await asyncio.to_thread(self._remove_locks)
        await self._finish_checkout()
        head = await self._head() if await asyncio.to_thread(self._exists) else None
        problem = await self._fetch(last, head)
        tips, base = await self._tips(), head
        if head is None or last is None:
            base = tips[await self._base_branch()]  # the fetch fails if there is no such branch
        start = await choose_start(
            self._id,
            last,
            tips=tips,
            base=base or "",
            head=head,
            has_last=last is not None and (last.commit in (head, *tips.values()) or await self._has(last.commit)),
            is_ancestor=self._is_ancestor,
        )
        code, message = (start.code, start.message) if start.code is not None or problem is None else problem
        if head is None:
            await self._create(start)
        elif (kept := await self._move(head, start)) is not None:
            code, message = WORK_SET_ASIDE, f"work that was not pushed is stored in the clone as {kept}"
        self._note_use()
        is_pushed = start.commit in tips.values() or await self._is_in_repository(start.commit)
        event = self._event(start.commit, start.branch, pushed=is_pushed, code=code, message=message)
        return None if code is None and event == _plain(last) else event

    def _remove_locks(self) -> None:
        """Remove the lock files of Git commands that were killed.

        No other command uses the files of this conversation. A lock of other files is removed if it is older than
        `STALE_LOCK_SECONDS`.
        """
        branch = branch_of(self._id)
        own = (f"worktrees/{self._id}/*.lock", f"refs/*/{branch}*.lock", f"refs/*/*/{branch}*.lock")
        shared = ("*.lock", "refs/**/*.lock")
        before = time.time() - STALE_LOCK_SECONDS
        for path in {found for pattern in own for found in glob(pattern, root_dir=self.clone)}:
            with suppress(OSError):
                os.unlink(os.path.join(self.clone, path))
        for path in {found for pattern in shared for found in glob(pattern, root_dir=self.clone, recursive=True)}:
            with suppress(OSError):
                if os.lstat(os.path.join(self.clone, path)).st_mtime < before:
                    os.unlink(os.path.join(self.clone, path))

    def _exists(self) -> bool:
        """Return whether the worktree exists with all its files. A link or a file at its path does not count as a
        worktree.
        """
        try:
            check_worktree(self._path)
        except (GitFailed, OSError):
            return False
        if self._unfinished_checkout() is not None:
            return False
        return all(os.path.isfile(os.path.join(self._admin, name)) for name in ("HEAD", "index"))

    def _return_worktree(self) -> None:
        """Move the worktree back to its path, if `_take_worktree` has moved it."""
        was_used = os.path.isfile(os.path.join(self._admin, _USED))
        if was_used and os.path.isdir(self._inside) and not os.path.lexists(self._path):
            os.rename(self._inside, self._path)

    async def _fetch(self, last: WorkspaceUpdated | None, head: str | None) -> tuple[str, str] | None:
        """Fetch the base branch and the branches of the conversation.

        Return None on success. If the fetch fails and this disk has the newest commit, return the error code and
        the message.
        """
        if not await asyncio.to_thread(os.path.isdir, self.clone):
            await self._initialize()
        branches = {f"{branch_of(self._id)}*"} | ({f"{last.branch}*"} if last is not None else set())
        if head is None or last is None:
            branches.add(await self._base_branch())
        stale = await asyncio.to_thread(self._remove_tracking_refs)
        is_first = not await asyncio.to_thread(os.path.isdir, os.path.join(self.clone, "refs/remotes/origin"))
        try:
            await self._network(
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
            if last is None or head is None or not await self._has(last.commit):
                raise
            return FETCH_FAILED, str(error)
        return None

    def _remove_tracking_refs(self) -> dict[str, bytes]:
        """Remove the refs of the branches of this conversation, and return their contents by path.

        The fetch creates these refs again for branches that still exist in the repository. `git fetch --prune`
        would have to write to the main directory of the clone.
        """
        found: dict[str, bytes] = {}
        for path in glob(f"refs/remotes/origin/{branch_of(self._id)}*", root_dir=self.clone):
            place = os.path.join(self.clone, path)
            if os.path.isfile(place) and not path.endswith(".lock"):
                with open(place, "rb") as file:
                    found[place] = file.read(100)
                os.unlink(place)
        return found

    def _restore_tracking_refs(self, refs: Mapping[str, bytes]) -> None:
        for place, content in refs.items():
            if not os.path.lexists(place):
                write_new_file(os.path.dirname(place), os.path.basename(place), content)

    async def _initialize(self) -> None:
        """Create an empty clone, completely or not at all."""
        partial = f"{self.clone}.new"
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
        await asyncio.to_thread(os.mkdir, partial, 0o700)
        await self._git.run(
            *("init", "--quiet", "--bare", "--template=", "--initial-branch=main", partial), writable=[partial]
        )
        await asyncio.to_thread(write_new_file, partial, "config", CONFIG)
        await asyncio.to_thread(os.makedirs, os.path.join(partial, "worktrees"))
        await asyncio.to_thread(os.rename, partial, self.clone)

    async def _base_branch(self) -> str:
        self._base_name = self._base_name or self._repository.branch or await self._default_branch()
        return self._base_name

    async def _default_branch(self) -> str:
        found = await self._network("ls-remote", "--symref", "origin", "HEAD", seconds=PUSH_SECONDS)
        for line in found.splitlines():
            if line.startswith("ref: refs/heads/") and line.endswith("\tHEAD"):
                return line.removeprefix("ref: refs/heads/").removesuffix("\tHEAD")
        raise GitFailed(
            "the repository has no default branch: set `branch` in the settings, or push a first commit"
        )

    async def _tips(self) -> dict[str, str]:
        pattern = "refs/remotes/origin/"
        listed = await self._clone_git("for-each-ref", "--format=%(objectname) %(refname)", pattern)
        rows = (line.split(" ", 1) for line in listed.splitlines())
        return {name.removeprefix(pattern): commit for commit, name in rows}

    async def _create(self, start: Start) -> None:
        await _completed(self._clear)
        await _completed(self._make_admin, start.branch)
        await self._point(start)
        await self._tree_git("read-tree", "--reset", "-u", start.commit, work_tree=self._inside)
        await _completed(self._restore_pointer, self._inside)
        await _completed(os.rename, self._inside, self._path)

    def _clear(self) -> None:
        """Rename any file or directory at the path of the worktree, so that it is kept, and remove the
        administrative directory of the worktree.
        """
        if os.path.lexists(self._path):  # this is an unfinished or foreign worktree
            os.rename(self._path, f"{self._path}.kept-{int(time.time())}")
        shutil.rmtree(self._admin, ignore_errors=True)

    def _make_admin(self, branch: str) -> None:
        os.makedirs(self._inside, mode=0o755)
        write_new_file(self._admin, "commondir", b"../..\n")
        write_new_file(self._admin, "gitdir", f"{self._path}/.git\n".encode())
        write_new_file(self._admin, "HEAD", f"ref: refs/heads/{branch}\n".encode())

    def _branch(self) -> str:
        with open(os.path.join(self._admin, "HEAD"), encoding="utf-8", errors="replace") as file:
            return file.read(1000).strip().removeprefix("ref: refs/heads/")

    async def _point(self, start: Start) -> None:
        """Set the branch of the worktree to the branch of `start`, and the commit of this branch to the commit of
        `start`.
        """
        await self._clone_git("update-ref", f"refs/heads/{start.branch}", start.commit, writes=("refs",))
        head = f"ref: refs/heads/{start.branch}\n".encode()
        await _completed(write_new_file, self._admin, "HEAD", head)

    async def _move(self, head: str, start: Start) -> str | None:
        """Move the worktree from its commit `head` to the start of the turn. Return the name under which other work
        was stored; None if there was none.
        """
        await asyncio.to_thread(self._restore_pointer, self._path)
        if head == start.commit:
            if await asyncio.to_thread(self._branch) != start.branch:
                await self._point(start)
            return None
        kept = None
        made, _, _ = await self._commit(head, "Work that was set aside")
        if not await self._is_ancestor(made or head, start.commit):
            kept = f"refs/parley/kept/{self._id}/{(made or head)[:12]}"
            await self._clone_git("update-ref", kept, made or head, writes=("refs",))
        # All files are in a commit and in the index now, except ignored ones and those that Git cannot read.
        try:
            await self._check_out(start)
        except GitFailed as error:
            log.warning("the worktree of %s is made again: %s", self._id, error)
            await _completed(self._return_worktree)
            await self._create(start)
        return kept

    async def _check_out(self, start: Start) -> None:
        """Change the files of the worktree to the files of the commit in `start`. Files that are neither in the
        commit nor in the index stay.

        If the call does not complete, nothing is committed from the worktree until the checkout has been repeated.
        """
        await _completed(write_new_file, self._admin, _CHECKOUT, f"{start.commit} {start.branch}".encode())
        await self._point(start)
        await _completed(self._take_worktree)
        await self._tree_git("read-tree", "--reset", "-u", start.commit, work_tree=self._inside)
        await _completed(self._return_worktree)
        await _completed(os.unlink, os.path.join(self._admin, _CHECKOUT))

    async def _finish_checkout(self) -> None:
        """Repeat a checkout that did not complete. Before the repetition, the worktree contains files of two
        commits, which are not work of the conversation.
        """
        if (start := await asyncio.to_thread(self._unfinished_checkout)) is not None:
            await asyncio.to_thread(self._remove_locks)
            try:
                if not is_from_parley(start.branch, start.commit):
                    raise GitFailed(f"the file {_CHECKOUT} is damaged")
                await self._check_out(start)
            except (GitFailed, OSError) as error:
                log.warning("the checkout in the worktree of %s cannot be repeated: %s", self._id, error)
        await _completed(self._return_worktree)

    def _unfinished_checkout(self) -> Start | None:
        """Return the commit and the branch of a checkout that did not complete; None if there is none."""
        try:
            with open(os.path.join(self._admin, _CHECKOUT), encoding="utf-8", errors="replace") as file:
                commit, _, branch = file.read(1000).partition(" ")
        except FileNotFoundError:
            return None
        return Start(commit=commit, branch=branch)

    def _take_worktree(self) -> None:
        """Move the worktree into its administrative directory, where commands of the model cannot change it. Do
        nothing if the worktree is already there.
        """
        if os.path.isdir(self._inside) and not os.path.lexists(self._path):
            return
        shutil.rmtree(self._inside, ignore_errors=True)
        self._note_use()
        os.rename(self._path, self._inside)
        try:
            check_worktree(self._inside)
        except GitFailed:
            os.rename(self._inside, self._path)
            raise

    def _restore_pointer(self, path: str) -> None:
        """Write the `.git` of the worktree again if a command has replaced it. Git commands of the model use it."""
        expected = f"gitdir: {self._admin}\n".encode()
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                found = os.open(".git", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                try:
                    if stat.S_ISREG(os.fstat(found).st_mode) and os.read(found, len(expected) + 1) == expected:
                        return
                finally:
                    os.close(found)
            with suppress(FileNotFoundError):
                os.unlink(".git", dir_fd=folder)  # this fails for a directory
            made = os.open(".git", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
            try:
                os.write(made, expected)
            finally:
                os.close(made)
        finally:
            os.close(folder)

    # --- after a turn ------------------------------------------------------------------

    async def save(self, last: WorkspaceUpdated, text: str, *, is_urgent: bool) -> WorkspaceUpdated | None:
        """Commit the files and push the branch. The result is that of `Workspaces.save`."""
        seconds = URGENT_SECONDS if is_urgent else LOCAL_SECONDS
        await asyncio.to_thread(check_worktree, self._path)
        if not await asyncio.to_thread(self._exists):
            raise GitFailed("the worktree is incomplete, because its checkout was interrupted")
        head = await self._head()
        code = message = None
        made, problem, nested = await self._commit(head, commit_message(text, self._id), seconds=seconds)
        if made is not None:
            await self._clone_git(
                "update-ref", f"refs/heads/{last.branch}", made, head, writes=("refs",), seconds=seconds
            )
        head = made or head
        if problem is not None:
            code, message = COMMIT_FAILED, problem
        elif nested:
            message = f"Git repositories in the worktree are not committed: {_listed(nested)}"
        self._note_use()
        if code is None and head == last.commit and last.pushed:
            return None if message is None or message == last.message else replace(last, message=message)
        branch, is_pushed = last.branch, True
        try:
            branch = await self._push(head, branch, URGENT_SECONDS if is_urgent else PUSH_SECONDS)
        except GitFailed as error:
            code, message = code or PUSH_FAILED, message or str(error)
            is_pushed = await self._is_in_repository(head)
        if branch != last.branch and code is None:
            code, message = BRANCH_DIVERGED, f"the branch {last.branch} in the repository has other commits"
        return self._event(head, branch, pushed=is_pushed, code=code, message=message)

    async def _commit(
        self, head: str, message: str, *, seconds: float = LOCAL_SECONDS
    ) -> tuple[str | None, str | None, tuple[str, ...]]:
        """Make a commit of all files that Git does not ignore, and add it to the clone. Return the commit; None if
        nothing has changed.

        The second value is the problem if files could not be read and were left out; otherwise None. The third
        value names the Git repositories that were left out.

        Raises:
            GitFailed: nothing was committed.
        """
        changes = await self._changes(seconds)
        unreadable = [*changes.unreadable, *await self._stage(changes.paths, seconds)]
        problem = f"files that cannot be read are left out: {_listed(unreadable)}" if unreadable else None
        tree = await self._tree_git("write-tree", seconds=seconds)
        if tree == await self._clone_git("rev-parse", "--verify", f"{head}^{{tree}}", seconds=seconds):
            return None, problem, changes.nested
        name, _, address = self._workspace.author.rpartition(" <")
        who = ("-c", f"user.name={name}", "-c", f"user.email={address.removesuffix('>')}")
        commit = await self._tree_git(*who, "commit-tree", "-p", head, "-m", message, tree, seconds=seconds)
        await asyncio.to_thread(add_objects, self._objects, self.clone)
        return commit, problem, changes.nested

    async def _changes(self, seconds: float = LOCAL_SECONDS) -> Changes:
        listed = await self._tree_git(*LIST, seconds=seconds, max_output=MAX_LIST_BYTES)
        if len(listed) >= MAX_LIST_BYTES // 2:
            raise GitFailed("too many files have changed")
        changes = await asyncio.to_thread(changes_in, self._path, listed)
        if not changes.replaced:
            return changes
        index = await self._tree_git(*LIST_INDEX, seconds=seconds, max_output=MAX_LIST_BYTES)
        submodules = submodules_in(index)  # these stay as they are
        files = tuple(path for path in changes.replaced if path not in submodules)
        # Git removes a file from the index before it adds files of the directory in its place.
        return replace(changes, replaced=(), paths=files + changes.paths)

    async def _stage(self, paths: tuple[str, ...], seconds: float) -> list[str]:
        """Put files into the index. Return the files that Git cannot read."""
        left, failed = list(paths), list[str]()
        while left:
            stdin = "".join(f"{path}\0" for path in left).encode(errors="surrogateescape")
            update = (*_LOOSE, "update-index", "-z", "--add", "--remove", "--replace", "--stdin")
            try:
                await self._tree_git(*update, seconds=seconds, stdin=stdin)
            except GitFailed as error:
                bad = [path for path in left if str(error).endswith(f"Unable to process path {_shown(path)}")]
                if not bad or len(failed) >= MAX_UNREADABLE:
                    raise
                failed += bad
                left = [path for path in left if path not in bad]
            else:
                break
        return failed

    async def _push(self, commit: str, branch: str, seconds: float) -> str:
        """Push a commit to a branch, without force. If the branch has diverged, push to the next free branch.

        Return the branch to which the commit was pushed.

        Raises:
            GitFailed: the commit was not pushed.
        """
        wanted = branch
        for _ in range(MAX_BRANCHES):
            try:
                await self._network(
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
                    await self._point(Start(commit=commit, branch=branch))
                return branch
        raise GitFailed(f"git push: {MAX_BRANCHES} branches of the conversation have diverged")

    # --- unused worktrees --------------------------------------------------------------

    async def collect(self, before: float) -> None:
        """Remove the worktrees of the clone that were last used before the time `before`, in seconds since the
        epoch. A worktree with work that is not in the repository stays.
        """
        folder = os.path.join(self.clone, "worktrees")
        for name in await asyncio.to_thread(_names_in, folder):
            one = _Worktree(
                ConversationId(name),
                self._git,
                self._name,
                self._repository,
                self._workspace,
                os.path.join(self._worktrees, name),
                self._node,
            )
            if name == self._id or one.used_at() >= before:
                continue
            try:
                if await one.is_pushed():
                    await asyncio.to_thread(one.remove)
                    log.info("the unused worktree of %s was removed", name)
            except (GitFailed, OSError) as error:
                log.warning("the unused worktree of %s was not removed: %s", name, error)

    def used_at(self) -> float:
        try:
            return os.stat(os.path.join(self._admin, _USED)).st_mtime
        except OSError:
            return time.time()  # the worktree is being created

    async def is_pushed(self) -> bool:
        """Return whether the repository contains everything in the worktree that Git does not ignore."""
        await self._finish_checkout()
        if not await asyncio.to_thread(os.path.lexists, self._path):
            return True
        await asyncio.to_thread(check_worktree, self._path)
        if not await asyncio.to_thread(self._exists):
            return False
        head = await self._head()
        if not (await self._changes()).is_empty:
            return False
        tree = await self._tree_git("write-tree")
        if tree != await self._clone_git("rev-parse", "--verify", f"{head}^{{tree}}"):
            return False
        return not await self._clone_git("rev-list", "--max-count=1", head, "--not", "--remotes=origin")

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        shutil.rmtree(self._admin)

    def _note_use(self) -> None:
        with suppress(OSError):
            descriptor = os.open(os.path.join(self._admin, _USED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)

    # --- git ---------------------------------------------------------------------------

    async def _head(self) -> str:
        """Return the id of the commit that the worktree has checked out."""
        return await self._run("rev-parse", "--verify", "HEAD^{commit}", variables=self._variables)

    async def _has(self, commit: str) -> bool:
        try:
            await self._clone_git("cat-file", "-e", f"{commit}^{{commit}}")
        except GitFailed:
            return False
        return True

    async def _is_ancestor(self, one: str, other: str) -> bool:
        if one == other:
            return True
        return not await self._clone_git("rev-list", "--max-count=1", one, "--not", other)

    async def _is_in_repository(self, commit: str) -> bool:
        """Return whether a branch in the repository contains a commit, according to the last fetch of this
        clone.
        """
        containing = ("for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes/origin/")
        return bool(await self._clone_git(*containing))

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

    async def _network(
        self,
        *arguments: str,
        writes: tuple[str, ...] = (),
        seconds: float = NETWORK_SECONDS,
        stdout_on_error: bool = False,
    ) -> str:
        """Run a Git command that uses the repository. The command may write to the directories `writes` of the
        clone.
        """
        return await self._run(
            *arguments,
            variables={"GIT_DIR": self.clone},
            writable=[os.path.join(self.clone, one) for one in writes],
            network=True,
            seconds=seconds,
            stdout_on_error=stdout_on_error,
        )

    async def _clone_git(
        self, *arguments: str, writes: tuple[str, ...] = (), seconds: float = LOCAL_SECONDS
    ) -> str:
        """Run a Git command that does not use the files of the worktree. The command may write to the directories
        `writes` of the clone.
        """
        writable = [os.path.join(self.clone, one) for one in writes]
        return await self._run(*arguments, variables={"GIT_DIR": self.clone}, writable=writable, seconds=seconds)

    async def _tree_git(
        self,
        *arguments: str,
        work_tree: str | None = None,
        seconds: float = LOCAL_SECONDS,
        stdin: bytes | None = None,
        max_output: int | None = None,
    ) -> str:
        """Run a Git command in the worktree. The command may write only to the administrative directory of the
        worktree. New objects are stored there too.
        """
        await asyncio.to_thread(os.makedirs, self._objects, exist_ok=True)
        more = {} if max_output is None else {"max_output": max_output}
        return await self._run(
            *arguments,
            variables={**self._variables, "GIT_OBJECT_DIRECTORY": self._objects},
            work_tree=work_tree or self._path,
            writable=[self._admin],
            seconds=seconds,
            stdin=stdin,
            **more,
        )

    @property
    def _variables(self) -> dict[str, str]:
        """The variables that name the directories of the worktree. They take precedence over the files in the
        administrative directory.
        """
        objects = os.path.join(self.clone, "objects").replace("\\", "\\\\").replace('"', '\\"')
        return {
            "GIT_DIR": self._admin,
            "GIT_COMMON_DIR": self.clone,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{objects}"',
        }

    async def _run(self, *arguments: str, **options: Any) -> str:
        """Check the clone with `check_clone`, and then run a Git command as `Git.run` does."""
        await asyncio.to_thread(check_clone, self.clone)
        return await self._git.run(*arguments, **options)


async def _completed(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread. The call completes before a cancellation is raised, so that it does not change
    files during the next turn.
    """
    return await run_to_completion(asyncio.ensure_future(asyncio.to_thread(function, *arguments)))


def _listed(paths: Sequence[str]) -> str:
    return listed([*map(quoted, paths)])


def _shown(path: str) -> str:
    """Return a path as `Git` shows it in an error."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", path.encode(errors="surrogateescape").decode(errors="replace"))


def _plain(last: WorkspaceUpdated | None) -> WorkspaceUpdated | None:
    return None if last is None else replace(last, code=UNSET, message=UNSET)


def _make_directories(directory: str, hidden: tuple[str, ...]) -> None:
    """Create the directories for clones and worktrees.

    Raises:
        GitFailed: a hidden path contains the directory, so commands could not read the worktrees. Or a directory
            was replaced, or other users can write to it.
        OSError: a directory cannot be created.
    """
    real = os.path.realpath(directory)
    if is_below_any(real, hidden) or is_below_any(directory, hidden):
        raise GitFailed("workspace.directory is in a directory that commands cannot read, such as Parley's home")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for name in ("repositories", "worktrees"):
        path = os.path.join(directory, name)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            why = "is not a directory to which only the user of the server can write"
            raise GitFailed(f"{name} in workspace.directory {why}")


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
