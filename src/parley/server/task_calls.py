"""Runs `codex` and `codex-reply` calls as tasks, and notifies clients when the status of a task changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import asdict

from parley.conversation.log import Cursor, Delta, Entry
from parley.conversation.output import OutputDelta
from parley.conversation.records import ApprovalRequest, ApprovalSettlement, TurnEnded, record_type
from parley.ports.outbox import Outbox
from parley.runtime.conversation import Conversation
from parley.runtime.message_intake import Accepted
from parley.server.errors import UnknownTask
from parley.server.modern.tasks import created_task
from parley.server.session import SILENT, Session
from parley.server.subscription import Subscription
from parley.server.tasks import TurnTask, task_of_turn
from parley.server.toolcall import ToolCall
from parley.wire.ids import EventId, Seq
from parley.wire.items import InputItem
from parley.wire.jsonrpc import RequestId, encode, notification
from parley.wire.tasks import CreateTaskResult, Task, TaskStatusChanged

__all__ = ["TaskFollower", "run_as_task"]

_APPROVAL_REQUEST: Final = record_type(ApprovalRequest)
_APPROVAL_SETTLEMENT: Final = record_type(ApprovalSettlement)
_ENDED: Final = record_type(TurnEnded)


async def run_as_task(
    call: ToolCall, conversation: Conversation, content: tuple[InputItem, ...], *, event_id: EventId | None = None
) -> None:
    """Submit `content` as a message. When the message is durable, respond to the call with the task that represents
    the turn of the message.

    If `event_id` is given and the message begins a turn, `event_id` becomes the id of this turn.
    """
    turn_ids: list[EventId] = []

    def accepted(message: Accepted) -> None:
        if message.turn is not None:
            turn_ids.append(message.turn.event_id)
            if message.began:
                call.session.note_turn(conversation, message.turn)

    await conversation.submit(
        content,
        principal=call.principal.ref,
        is_limited=call.principal.is_limited,
        event_id=event_id,
        resolve=call.session.loader.choose,
        deadline=call.deadline,
        accepted=accepted,
    )
    if not turn_ids:
        raise UnknownTask(conversation.id)
    task = await task_of_turn(conversation, turn_ids[0])
    if call.features.modern:
        call.call.answer(created_task(task), "task")
        return
    call.call.answer(encode(CreateTaskResult(task=task.running("working", task.created_at))))
    follower = TaskFollower(
        call.session,
        task,
        call.call.id,
        server_requests=call.call.context.reply.server_requests,
        notify=call.session.out.send,
    )
    follower.start(task.start)


class TaskFollower:
    """Sends the approval requests of a task to a client, and notifies the client when the status of the task
    changes.

    The follower stops when the turn ends or the client leaves.
    """

    def __init__(
        self,
        session: Session,
        task: TurnTask,
        request: RequestId,
        *,
        server_requests: Outbox,
        notify: Callable[[bytes], None] | None = None,
    ) -> None:
        """Create the follower.

        `request` is the id of the request from the client that creates the task or waits for its result. Approval
        requests are sent to `server_requests`. `notify` sends an encoded status notification. If `notify` is None,
        the client gets no status notifications.
        """
        self._task, self._notify = task, notify
        session.note_request(task.conversation.id, request)
        self._subscription = Subscription(
            session,
            task.conversation,
            SILENT,
            _NO_ENCODER,
            server_requests=server_requests,
            on_entry=self._passed,
            on_dropped=lambda error: self.close(),
            task_id=task.id,
        )

    def start(self, after: Seq) -> None:
        """Begin to follow the task after the position `after` in the log."""
        self._subscription.start(Cursor(after))
        self._subscription.send_now()

    def close(self) -> None:
        self._subscription.close()

    def _passed(self, entry: Entry) -> None:
        task: Task
        if entry.is_event:
            return
        if entry.type == _ENDED:
            self.close()
            task = self._task.ended(entry)
        elif entry.type == _APPROVAL_REQUEST:
            task = self._task.running("input_required", entry.at)
        elif entry.type == _APPROVAL_SETTLEMENT:
            task = self._task.running("working", entry.at)
        else:
            return
        if self._notify is not None:
            self._notify(notification(TaskStatusChanged.METHOD, encode(TaskStatusChanged(**asdict(task)))))


class _NoEncoder:
    """An encoder that sends nothing."""

    hidden: frozenset[str] = frozenset()
    sends_records = False

    def entry(self, entry: Entry, send: Callable[[bytes], None]) -> None:
        pass

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Callable[[bytes], None]) -> None:
        pass


_NO_ENCODER: Final = _NoEncoder()
