"""The worktree of one turn. The worktree is prepared before the turn begins, and its changes are saved before the
end of the turn is stored.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from parley.common.shield import run_to_completion
from parley.config.types import Settings
from parley.conversation.log import LogPayload
from parley.ports.workspaces import Workspaces
from parley.runtime.durable_log import DurableLog
from parley.wire.events import UserMessage, WorkspaceUpdated
from parley.wire.items import text_of

__all__ = ["TurnWorkspace"]

_messages: Final = msgspec.json.Decoder(UserMessage)


class TurnWorkspace:
    """Prepares the worktree of the conversation for one turn, and saves the changes that the turn made."""

    def __init__(self, durable_log: DurableLog, workspaces: Workspaces, settings: Settings) -> None:
        self._log, self._workspaces, self._settings = durable_log, workspaces, settings

    async def prepare(self) -> None:
        """Prepare the worktree for the turn. If the newest `workspace_updated` event in the log does not describe
        the prepared worktree, append a new event.

        Raises:
            WorkspaceUnavailable: the worktree cannot be prepared.
            StoreError: the event cannot be stored.
        """
        last = self._log.projections.workspace
        event = await self._workspaces.prepare(self._log.id, self._settings, last)
        if event is not None:
            await self._log.append(event)

    async def save(self) -> tuple[LogPayload, ...]:
        """Commit and push the changed files. Return the entries that the caller appends together with the end of
        the turn.

        Raises:
            StoreError: the message of the turn cannot be read.
        """
        event = await self._saved(is_urgent=False)
        return () if event is None else (event,)

    async def save_cut_short(self) -> None:
        """Commit and push the changed files of a turn that was interrupted or failed, and append the event that
        describes the commit.

        The call completes even if its task is cancelled. The call does nothing if this process no longer owns the
        conversation, because another process may be running the next turn in the worktree.

        Raises:
            StoreError: the event cannot be stored.
        """
        if self._log.is_owner:
            await run_to_completion(asyncio.ensure_future(self._save_and_append()))

    async def _save_and_append(self) -> None:
        event = await self._saved(is_urgent=True)
        if event is not None and self._log.is_owner:
            await self._log.append(event)

    async def _saved(self, *, is_urgent: bool) -> WorkspaceUpdated | None:
        last = self._log.projections.workspace
        assert last is not None  # `prepare` has appended an event
        text = await self._text()
        return await self._workspaces.save(self._log.id, self._settings, last, text, is_urgent=is_urgent)

    async def _text(self) -> str:
        """Return the text from which the commit message is made: the message that began the turn, or the title of
        the conversation if no message began the turn.
        """
        state = self._log.projections.state
        if (first := next(iter(state.inputs.values()), None)) is not None:
            entry = await self._log.entry_at(first)
            return text_of(_messages.decode(entry.encoded).content)
        return state.title
