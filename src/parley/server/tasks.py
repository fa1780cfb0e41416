"""Represents turns as MCP tasks. Every turn of every conversation is a task. A task id consists of the id of the
conversation and the position at which the turn begins.

No state is stored for a task. The status and the result of a task are computed from the log, so every process and
every later session can read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from parley.conversation.log import Entry
from parley.conversation.log_queries import is_turn_end, last_text
from parley.conversation.records import TurnEnded, TurnStarted, record_type
from parley.conversation.state import Phase
from parley.errors import UnknownConversation
from parley.runtime.conversation import Conversation
from parley.runtime.log_pages import last_workspace_before
from parley.runtime.registry import ConversationRegistry
from parley.server.access import require_conversation
from parley.server.context import Principal
from parley.server.errors import UnknownTask
from parley.server.hosts import Features
from parley.server.result_notes import ResultNotes
from parley.server.times import iso
from parley.server.turn_results import turn_result
from parley.wire.events import TurnEndReason, WorkspaceUpdated
from parley.wire.ids import ConversationId, EventId, Seq
from parley.wire.mcp import CallToolResult
from parley.wire.tasks import RelatedTask, ResultMeta, Task, TaskStatus

__all__ = ["TurnTask", "find_task", "last_task", "task_of_turn"]

POLL_MILLISECONDS: Final = 1000

_TASK_ID: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([1-9][0-9]{0,14})")
_STARTED: Final = record_type(TurnStarted)
_started_decoder: Final = msgspec.json.Decoder(TurnStarted)
_ended_decoder: Final = msgspec.json.Decoder(TurnEnded)

_STATUS: Final[Mapping[TurnEndReason, TaskStatus]] = {
    "done": "completed",
    "failed": "failed",
    "interrupted": "cancelled",
    "stopped": "failed",
    "restarted": "failed",
}


class TurnTask(Struct, frozen=True):
    """The task that represents one turn to clients."""

    conversation: Conversation
    start: Seq
    """The position of the record `turn_started`, with which the turn begins."""
    event_id: EventId
    created_at: float

    @property
    def id(self) -> str:
        return f"{self.conversation.id}.{self.start}"

    async def end(self) -> Entry | None:
        """Return the entry that ends the turn; None if the turn has not ended.

        Raises:
            StoreError: the conversation cannot be read.
        """
        conversation = self.conversation
        if conversation.state.event_id == self.event_id:
            if conversation.phase is not Phase.IDLE:
                return None
            before = Seq(conversation.log.durable + 1)  # the end of the last turn is near the end of the log
            while before > self.start and (page := await conversation.read_before(before)):
                for entry in reversed(page):
                    if is_turn_end(entry):
                        return entry
                before = page[0].seq
            return None
        after = self.start
        while page := await conversation.read_after(after):
            for entry in page:
                if is_turn_end(entry):
                    return entry
            after = page[-1].seq
        return None

    async def wait_for_end(self) -> Entry | None:
        """Wait until the turn has ended, and return the entry that ends it; None if the server shuts down first.

        Raises:
            UnknownConversation: the conversation has been deleted.
            StoreError: the conversation cannot be read.
        """
        while True:
            position = self.conversation.log.durable
            if (entry := await self.end()) is not None:
                return entry
            if self.conversation.is_closing:
                return None
            await self.conversation.wait_beyond(position)

    async def status(self) -> Task:
        """Return the current state of the task, in the form in which clients get it.

        Raises:
            StoreError: the conversation cannot be read.
        """
        if (entry := await self.end()) is not None:
            return self.ended(entry)
        asks = self.conversation.phase is Phase.ASKING
        return self.running("input_required" if asks else "working", self.conversation.state.updated_at)

    def running(self, status: TaskStatus, at: float) -> Task:
        """Return the state of the task while its turn is running. `status` is the status of the task, and `at` is
        the time of the last change, in seconds since the epoch.
        """
        message = "The agent waits for an approval." if status == "input_required" else UNSET
        return Task(
            task_id=self.id,
            status=status,
            status_message=message,
            created_at=iso(self.created_at),
            last_updated_at=iso(at),
            poll_interval=POLL_MILLISECONDS,
        )

    def ended(self, entry: Entry) -> Task:
        """Return the final state of the task. `entry` is the entry that ends the turn."""
        ended = _ended_decoder.decode(entry.encoded)
        task = self.running(_STATUS[ended.why], entry.at)
        return replace(task, status_message=(ended.message or "").strip() or UNSET, poll_interval=UNSET)

    async def result(self, entry: Entry, features: Features) -> CallToolResult:
        """Return the result of the task. The result has the same form as the result of a `codex` call for a client
        with the given features. `entry` is the entry that ends the turn.

        Raises:
            StoreError: the conversation cannot be read.
        """
        notes = ResultNotes(self.conversation.id)
        if features.explains_results:
            position = Seq(self.start - 1)
            while position < entry.seq and (page := await self.conversation.read_after(position)):
                for one in page:
                    if one.seq <= entry.seq:
                        notes.passed(one)
                position = page[-1].seq
        ended = _ended_decoder.decode(entry.encoded)
        if ended.why == "done":
            ended = replace(ended, message=last_text(await self.conversation.read_before(entry.seq, limit=1)))
        workspace = await self._workspace(entry.seq) if features.additions else None
        return turn_result(self.conversation.id, ended.message or "", ended, notes, features, workspace)

    async def _workspace(self, end: Seq) -> WorkspaceUpdated | None:
        """Return the last commit in the repository of the conversation before the turn ended; None if there was no
        commit. `end` is the position at which the turn ends.
        """
        newest = self.conversation.workspace
        if newest is None or self.conversation.state.event_id == self.event_id:
            return newest
        return await last_workspace_before(self.conversation, end)

    def with_task(self, result: CallToolResult) -> CallToolResult:
        """Return a copy of `result` whose `_meta` names this task."""
        return replace(result, meta=ResultMeta(related_task=RelatedTask(task_id=self.id)))


async def find_task(conversations: ConversationRegistry, principal: Principal, task_id: str) -> TurnTask:
    """Return the task with the id `task_id`.

    Raises:
        UnknownTask: there is no task with this id, or the principal is not allowed to see its conversation.
        StoreError: the conversation cannot be read.
    """
    found = _TASK_ID.fullmatch(task_id)
    if found is None:
        raise UnknownTask(task_id)
    conversation_id, start = ConversationId(found[1]), Seq(int(found[2]))
    try:
        require_conversation(principal, conversation_id)
        conversation = await conversations.find(conversation_id)
    except UnknownConversation:
        raise UnknownTask(task_id) from None
    if start > conversation.log.durable:
        raise UnknownTask(task_id)
    page = await conversation.read_after(Seq(start - 1), limit=1)
    if not page or page[0].is_event or page[0].type != _STARTED:
        raise UnknownTask(task_id)
    return _task(conversation, page[0])


async def task_of_turn(conversation: Conversation, event_id: EventId) -> TurnTask:
    """Return the task of the turn with the event id `event_id`. The beginning of the turn must be durable."""
    start = await conversation.position_of_turn(event_id)
    if start is None or start > conversation.log.durable:
        raise UnknownTask(event_id)
    return _task(conversation, (await conversation.read_after(Seq(start - 1), limit=1))[0])


async def last_task(conversation: Conversation) -> TurnTask | None:
    """Return the task of the last turn of the conversation; None if the conversation has no turn in the store.

    Raises:
        StoreError: the conversation cannot be read.
    """
    event_id = conversation.state.event_id
    start = None if event_id is None else await conversation.position_of_turn(event_id)
    if start is None or start > conversation.log.durable:
        return None
    return _task(conversation, (await conversation.read_after(Seq(start - 1), limit=1))[0])


def _task(conversation: Conversation, entry: Entry) -> TurnTask:
    return TurnTask(conversation, entry.seq, _started_decoder.decode(entry.encoded).event_id, entry.at)
