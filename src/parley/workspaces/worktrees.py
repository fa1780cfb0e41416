"""Manages the clones of the repositories, and a separate worktree for each conversation.

The directory in the setting `workspace.directory` contains the bare clones, `repositories/NAME.git`, and the
worktrees, `worktrees/ID`. Commands of the model can write only to the worktree of their own conversation. All Git
commands of the server name the clone explicitly and ignore the `.git` in a worktree, because a command of the model
may have replaced that `.git`.

A Git command that uses the files of a worktree can write only to the administrative directory of this worktree,
`repositories/NAME.git/worktrees/ID`. Git stores new objects there, and the server then moves these objects to the
clone. Before a checkout, the server moves the worktree into the administrative directory, where no command of a
model can replace the worktree. After the checkout, the server moves the worktree back to `worktrees/ID`.

To remove a worktree, the server first renames it to `repositories/ID.removed-TIME`, and then deletes its files.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from msgspec.structs import replace

from parley.common.os_errors import os_detail
from parley.config.types import Settings, WorkspaceSettings
from parley.errors import COMMIT_FAILED, BadSetting, WorkspaceUnavailable
from parley.ports.commands import CommandRunner
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import ConversationId
from parley.workspaces.checkout import completed
from parley.workspaces.git import Git, GitFailed, Remote, expanded
from parley.workspaces.paths import WorktreePaths, make_directories
from parley.workspaces.removal import begin_deletion
from parley.workspaces.worktree import Worktree

__all__ = ["GitWorktrees"]

log = logging.getLogger(__name__)

LOCK_POLL_SECONDS: Final = 0.05
COLLECT_SECONDS: Final = 3600.0
"""The minimum time, in seconds, between two searches for unused worktrees, and for removed worktrees whose files
are not deleted yet.
"""


class GitWorktrees:
    """An implementation of `Workspaces`. The worktrees of a repository share one clone of the repository."""

    def __init__(
        self,
        commands: CommandRunner,
        settings: Callable[[], WorkspaceSettings],
        environ: Mapping[str, str],
        *,
        node: Callable[[], str | None],
    ) -> None:
        """Create the object. `commands` runs the Git commands, `settings` returns the current settings, and
        `environ` are the server's environment variables. `node` returns the id of this node; None if the process is
        not a node.
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
            async with self._locked(tree.paths.clone):
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

    async def _worktree(self, conversation_id: ConversationId, settings: Settings) -> Worktree:
        name, workspace = settings.repository or "", self._settings()
        if (repository := workspace.repositories.get(name)) is None:
            raise WorkspaceUnavailable(name, "config.toml does not define it")
        path = self.directory_of(conversation_id)
        directory = os.path.dirname(os.path.dirname(path))
        await asyncio.to_thread(make_directories, directory, settings.withheld_paths)
        git = Git(self._commands, settings, Remote.of(name, repository, self._environ), directory)

        def worktree_of(one: str) -> Worktree:
            place = os.path.join(directory, "worktrees", one)
            paths = WorktreePaths.of(ConversationId(one), name, place)
            return Worktree(git, paths, name, repository, workspace, self._node())

        if time.monotonic() - self._collected > COLLECT_SECONDS:
            self._collected = time.monotonic()
            paths = WorktreePaths.of(conversation_id, name, path)
            try:
                if workspace.keep_days and await asyncio.to_thread(os.path.isdir, paths.clone):
                    async with self._locked(paths.clone):
                        await _collect(paths, worktree_of, time.time() - workspace.keep_days * 24 * 3600.0)
            finally:
                begin_deletion(paths.repositories)
        return worktree_of(conversation_id)

    @asynccontextmanager
    async def _locked(self, clone: str) -> AsyncIterator[None]:
        """Hold the lock of a clone during the `async with` block.

        Other processes that need the lock of this clone wait until the lock is released.
        """
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


async def _collect(paths: WorktreePaths, worktree_of: Callable[[str], Worktree], before: float) -> None:
    """Remove the worktrees of a clone that were last used before the time `before`, in seconds since the epoch.

    Keep the worktree at `paths`, and worktrees that contain work that is not in the repository. `worktree_of`
    returns the `Worktree` of the conversation with a given id.
    """
    for name in await asyncio.to_thread(_names_in, os.path.join(paths.clone, "worktrees")):
        one = worktree_of(name)
        if name == paths.conversation_id or one.used_at() >= before:
            continue
        try:
            if await one.is_pushed():
                await completed(one.move_away)
                log.info("the unused worktree of %s was removed", name)
        except (GitFailed, OSError) as error:
            log.warning("the unused worktree of %s was not removed: %s", name, error)


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
