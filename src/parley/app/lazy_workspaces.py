"""Imports the implementation of worktrees when the first conversation works in a repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from parley.config.types import Settings, WorkspaceSettings
from parley.ports.commands import CommandRunner
from parley.ports.workspaces import Workspaces
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import ConversationId

__all__ = ["LazyWorkspaces"]


class LazyWorkspaces:
    """An implementation of `Workspaces` that imports `GitWorktrees` when one of its methods is first called, so
    that servers start faster.
    """

    def __init__(
        self,
        commands: CommandRunner,
        settings: Callable[[], WorkspaceSettings],
        environ: Mapping[str, str],
        *,
        node: Callable[[], str | None],
    ) -> None:
        """Store the arguments with which `GitWorktrees` is created later."""
        self._commands, self._settings, self._environ, self._node = commands, settings, environ, node

    @cached_property
    def _worktrees(self) -> Workspaces:
        from parley.workspaces import GitWorktrees

        return GitWorktrees(self._commands, self._settings, self._environ, node=self._node)

    def directory_of(self, conversation_id: ConversationId) -> str:
        return self._worktrees.directory_of(conversation_id)

    async def prepare(
        self, conversation_id: ConversationId, settings: Settings, last: WorkspaceUpdated | None
    ) -> WorkspaceUpdated | None:
        return await self._worktrees.prepare(conversation_id, settings, last)

    async def save(
        self,
        conversation_id: ConversationId,
        settings: Settings,
        last: WorkspaceUpdated,
        message: str,
        *,
        is_urgent: bool,
    ) -> WorkspaceUpdated | None:
        return await self._worktrees.save(conversation_id, settings, last, message, is_urgent=is_urgent)
