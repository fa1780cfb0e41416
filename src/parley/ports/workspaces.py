"""The interface to the worktrees of the conversations that work in Git repositories."""

from __future__ import annotations

from typing import Protocol

from parley.config.types import Settings
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import ConversationId

__all__ = ["Workspaces"]


class Workspaces(Protocol):
    """The Git worktrees on this computer. Each conversation has at most one worktree."""

    def directory_of(self, conversation_id: ConversationId) -> str:
        """Return the absolute path of the worktree of a conversation. The worktree need not exist.

        Raises:
            ConfigError: the settings name no directory for worktrees.
        """
        ...

    async def prepare(
        self, conversation_id: ConversationId, settings: Settings, last: WorkspaceUpdated | None
    ) -> WorkspaceUpdated | None:
        """Create the worktree of a conversation or, if it exists, check out the newest commit of the conversation
        in it.

        `last` is the last `workspace_updated` event in the conversation's log. The event may come from another node
        or, in a fork, from another conversation. None means that there is no such event. Return the event to append
        to the log; None if `last` still describes the worktree.

        Uncommitted files stay in the worktree, unless the conversation has continued on another node. If it has,
        these files are first committed under `refs/parley/kept/`, because the checkout replaces them.

        Raises:
            WorkspaceUnavailable: the worktree cannot be prepared.
        """
        ...

    async def save(
        self,
        conversation_id: ConversationId,
        settings: Settings,
        last: WorkspaceUpdated,
        message: str,
        *,
        is_urgent: bool,
    ) -> WorkspaceUpdated | None:
        """Commit the files in the worktree of a conversation, and push its branch. The commit message is made from
        `message`, which is the user's message that began the turn, or the title of the conversation. `last` is the
        last `workspace_updated` event in the log. If `is_urgent` is True, the push is abandoned after a few
        seconds.

        Return the event to append to the log; None if nothing has changed. The call never raises an error. After a
        failure, the event describes the failure, and the files and commits stay on the disk.
        """
        ...
