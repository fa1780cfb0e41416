"""Runs the calls that wait for the end of a turn: `codex` and `codex-reply`.

Such a call reads the conversation, and sends each event to the client as two notifications (`CodexEncoder`). When
the call reaches the end of its turn in the log, it sends the response. All events are therefore sent before the
response. If a client at protocol version 2025-11-25 interrupts the turn by cancelling the call, the client gets the
remaining events and no response.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final
from uuid import UUID

import msgspec

from parley.common.os_errors import OUT_OF_MEMORY
from parley.conversation.approvals import PendingApproval
from parley.conversation.log import Cursor, Entry
from parley.conversation.log_queries import EndedTurn, last_text, last_workspace, turn_end_in
from parley.conversation.records import ApprovalRequest, TurnEnded, TurnStarted, record_type
from parley.conversation.turn_ends import INTERRUPTED
from parley.errors import INTERNAL_ERROR, RESOURCE_LIMIT, StoreError, VisibleError
from parley.ports.store import PAGE
from parley.runtime.conversation import Conversation
from parley.runtime.log_pages import last_turn_end, last_workspace_before
from parley.runtime.message_intake import Accepted
from parley.runtime.turn_runner import Turn
from parley.server.access import may_call_approval_answer
from parley.server.encoders import CodexEncoder
from parley.server.progress import ProgressReporter
from parley.server.result_notes import ResultNotes, returned_approval
from parley.server.subscription import Subscription
from parley.server.toolcall import ToolCall
from parley.server.turn_results import turn_result
from parley.wire.events import EventBase, TaskComplete, WorkspaceUpdated, event_type
from parley.wire.ids import START, EventId, Seq
from parley.wire.items import InputItem
from parley.wire.jsonrpc import encode

__all__ = ["TurnWaiter", "resumed"]

RESUME_ENTRIES: Final = 50
"""The number of entries that a resumed call reads to find the last message of its turn, if the position before the
turn is unknown. These entries come directly before the position at which the call is resumed.
"""
BEFORE_THE_TURN: Final = EventId("0")

_STARTED: Final = record_type(TurnStarted)
_ENDED: Final = record_type(TurnEnded)
_COMPLETE: Final = event_type(TaskComplete)
_WORKSPACE: Final = event_type(WorkspaceUpdated)
_APPROVAL_REQUEST: Final = record_type(ApprovalRequest)


async def resumed(call: ToolCall) -> bool:
    """If the client repeats an earlier call that ended with an approval request, continue the earlier call and
    return True. Otherwise, return False.

    Raises:
        ParleyError: the conversation does not exist or cannot be read, or the client's decision cannot be stored.
    """
    if call.rounds is None or (state := call.rounds.previous) is None:
        return False
    conversation = await call.conversation(UUID(state.conversation))
    await call.rounds.settle(conversation)
    await TurnWaiter(call, conversation).resume(Seq(state.seq), EventId(state.event_id), before=Seq(state.before))
    return True


class TurnWaiter:
    """Submits a message, sends the events of its turn to the client, and sends the response to the call when the
    turn ends.
    """

    def __init__(self, call: ToolCall, conversation: Conversation, *, skipped: int = 0) -> None:
        """Create the object for a call. If the call is resumed, the client already has the first `skipped` messages
        of the first entry.
        """
        self._call, self._conversation = call, conversation
        self._features, self._session = call.features, call.session
        reply = call.call.context.reply
        self._encoder = CodexEncoder(call.call.id, self._features, event_id=BEFORE_THE_TURN)
        events = reply.events(call.call.id, conversation.id, lambda: self._encoder.event_id)
        self._out = call.session.events_to(events)
        self._progress = ProgressReporter(
            reply.notifications, call.progress_token, delayed=self._features.full_version
        )
        self._notes = ResultNotes(conversation.id)
        self._before = START
        """The position of the last entry before the turn."""
        self._turn: Turn | None = None
        self._last_text: str | None = None
        """The last message of the turn; None until the turn is complete."""
        self._workspace: WorkspaceUpdated | None = None
        """The last `workspace_updated` event up to the position that the call has read; None if there is none."""
        self._earlier_end: EndedTurn | None = None
        """The end of the turn for which an earlier call stopped waiting, if it was read from the store; None if
        there is no such turn, or if its end is still in memory.
        """
        self._followers_timer: asyncio.TimerHandle | None = None
        self._cancelled = False
        """True if the client has cancelled the call while its turn was running."""
        self._ended = False
        self._subscription = Subscription(
            call.session,
            conversation,
            self._out,
            self._encoder,
            on_ask=self._ask_by_result,
            server_requests=reply.server_requests,
            on_entry=self._passed,
            on_dropped=self._dropped,
            waits_for_turn=True,
            skipped=skipped,
        )
        call.session.note_request(conversation.id, call.call.id)

    def send(self, event: EventBase) -> None:
        """Send an event that is not in the log, because it belongs only to this call."""
        self._encoder.event(event_type(event), encode(event), self._out.send)

    async def run_first(self, content: tuple[InputItem, ...]) -> None:
        """Submit the first message of a new conversation. The request id becomes the event id of the turn."""
        await self._submit(content, EventId(str(self._call.call.id)), follow_from=START)

    async def run_next(self, content: tuple[InputItem, ...]) -> None:
        """Submit a message to an existing conversation. The message begins a turn or is added to the running
        turn.
        """
        abandoned, log = self._session.abandoned_turns.get(self._conversation.id), self._conversation.log
        if abandoned is not None and abandoned < log.base:
            self._earlier_end = await last_turn_end(self._conversation, after=abandoned, up_to=log.durable)
        await self._submit(content, None, follow_from=None)

    async def resume(self, after: Seq, event_id: EventId, *, before: Seq | None = None) -> None:
        """Continue a call whose connection was lost, or that ended with an approval request.

        Send the events after the position `after`. Send the response when the end of the turn is reached; this end
        may already be in the log. `event_id` is the event id of the turn. `before` is the position before the turn;
        None if this position is unknown.

        Raises:
            StoreError: the log cannot be read.
        """
        position = Seq(max(START, after - RESUME_ENTRIES)) if before is None else before
        while position < after:
            page = await self._conversation.read_after(position, limit=min(PAGE, after - position))
            for entry in page:
                self._notes.passed(entry)
                if entry.type in (_STARTED, _COMPLETE):
                    self._last_text = last_text((entry,)) if entry.type == _COMPLETE else None
            position = page[-1].seq if page else after
        if self._features.additions and self._conversation.workspace is not None:
            self._workspace = await last_workspace_before(self._conversation, Seq(after + 1))
        source = self._conversation.log
        rest = source.between(after, source.durable) if after >= source.base else ()
        is_running = after >= source.base and not any(entry.type == _ENDED for entry in rest)
        self._encoder.change_event_id(event_id)
        self._follow(after, self._conversation.turn if is_running else None, before=before)
        self._subscription.send_now()

    async def _submit(
        self, content: tuple[InputItem, ...], event_id: EventId | None, follow_from: Seq | None
    ) -> None:
        def accepted(message: Accepted) -> None:
            if message.began and message.turn is not None:
                self._session.note_turn(self._conversation, message.turn)
            if follow_from is None and message.turn is not None:
                self._encoder.change_event_id(message.turn.event_id)
            self._workspace = self._conversation.workspace
            self._follow(Seq(message.first - 1) if follow_from is None else follow_from, message.turn)

        await self._conversation.submit(
            content,
            principal=self._call.principal.ref,
            is_limited=self._call.principal.is_limited,
            event_id=event_id,
            resolve=self._session.loader.choose,
            deadline=self._call.deadline,
            accepted=accepted,
        )

    def _follow(self, after: Seq, turn: Turn | None, *, before: Seq | None = None) -> None:
        """Send the events after the position `after`.

        `before` is the position before the turn; the default is `after`. `turn` is the running turn; None if the
        turn has ended, or if it is unknown whether the turn is running. The call ends when the end of the turn has
        been read from the log.
        """
        if self._session.has_left:
            return  # the client has left, and the turn continues
        self._before, self._turn = after if before is None else before, turn
        self._note_earlier_turn(after)
        self._session.on_leave(self, self._stop_waiting)
        self._call.call.context.reply.on_closed(self._lost)
        if self._ended:
            return
        self._subscription.start(Cursor(after))
        if turn is not None:
            self._call.call.on_cancel(self._cancel)
            turn.work.add_done_callback(self._work_ended)
        else:
            self._subscription.send_now()
        self._progress.begin()
        self._return_approval()

    def cancel_before_it_begins(self) -> None:
        """Stop waiting for the tool servers (the MCP servers that the agent uses), because the client has cancelled
        the call before its turn begins. The turn then begins and is interrupted immediately. Do nothing if the
        client has only stopped waiting (`Features.is_timeout`).
        """
        if not self._features.is_timeout(self._call.call.cancel_reason):
            self._conversation.stop_waiting_for_tool_servers()

    def _cancel(self) -> None:
        """Interrupt the turn, because the client has cancelled the call. If the client has only stopped waiting
        (`Features.is_timeout`), end the call without a response, and let the turn continue.
        """
        assert self._turn is not None
        if self._features.is_timeout(self._call.call.cancel_reason):
            self._session.abandoned_turns[self._conversation.id] = self._before
            self._stop_waiting()
            self._call.call.drop()
            return
        if self._features.cancels_requests and not self._turn.work.done():
            self._cancelled = True
            self._progress.stop()
        self._conversation.interrupt(self._turn, principal=self._call.principal.ref)

    def _passed(self, entry: Entry) -> None:
        self._notes.passed(entry)
        if entry.type == _STARTED:
            self._encoder.change_event_id(msgspec.json.decode(entry.encoded, type=TurnStarted).event_id)
        elif entry.type == _ENDED:
            ended = msgspec.json.decode(entry.encoded, type=TurnEnded)
            if self._cancelled and ended.why == "interrupted":
                self._stop_waiting()
                self._call.call.drop()
            elif ended.why == "done":
                self._end(TurnEnded(why="done", message=self._last_text))
            else:
                self._end(ended)
        elif entry.type == _COMPLETE:
            self._last_text = last_text((entry,))
        elif entry.is_event and entry.type == _WORKSPACE:
            self._workspace = last_workspace((entry,))
        if entry.is_event and entry.type not in self._encoder.hidden:
            self._progress.event(entry.type)
        if entry.type == _APPROVAL_REQUEST:
            self._return_approval()

    def _ask_by_result(self, approval: PendingApproval, request: str) -> None:
        """Send an approval request as the result of the call. The client then repeats the call and includes its
        decision.
        """
        rounds, conversation = self._call.rounds, self._conversation
        if self._ended or rounds is None:
            return
        input_request = rounds.input_request(
            conversation,
            approval,
            seq=self._subscription.position,
            event_id=self._encoder.event_id,
            request=request,
            before=self._before,
        )
        if input_request is None:
            self._end_with(approval)
            return
        self._stop_waiting()
        self._progress.before_result(partial(self._answer_with, input_request))

    def _answer_with(self, input_request: bytes) -> None:
        self._call.call.answer(input_request, "input_required")
        self._call.call.finished()

    def _return_approval(self) -> None:
        """If the open approval must be returned to calls that wait for the turn
        (`ConversationApprovals.is_returned`), end the call with a description of this approval. While another
        client may still begin to follow the turn, do not end the call, but check again later.
        """
        conversation, approval = self._conversation, self._conversation.approvals.open
        if self._ended or approval is None or not conversation.approvals.is_returned:
            return
        if left := conversation.approvals.seconds_for_followers:
            self._followers_timer = asyncio.get_running_loop().call_later(left, self._return_approval)
            return
        self._end_with(approval)

    def _end_with(self, approval: PendingApproval) -> None:
        """Send a result that describes the open approval and explains how to answer it."""
        may_answer = may_call_approval_answer(self._call.principal, self._features, approval)
        self._end(None, returned_approval(approval.request, self._conversation.id, may_answer=may_answer))

    def _note_earlier_turn(self, before: Seq) -> None:
        """If an earlier call from this client stopped waiting for its turn, add a note about the end of that turn.
        `before` is the position before the turn of this call.
        """
        abandoned = self._session.abandoned_turns.pop(self._conversation.id, None)
        if abandoned is None:
            return
        log = self._conversation.log
        in_memory = log.between(max(abandoned, log.base), before)
        if (end := turn_end_in(in_memory) or self._earlier_end) is not None:
            self._notes.earlier_turn(end.text or "")

    def _work_ended(self, work: asyncio.Future[TurnEnded]) -> None:
        """Send the response if the turn has stopped, but the end of the turn will not reach the log of this
        process. `work` is the finished future of the turn.

        The end of the turn does not reach the log if the end cannot be stored, or if another process will store it
        after this server has shut down.
        """
        assert self._turn is not None
        if self._turn.lost is not None:
            self._fail(str(self._turn.lost), self._turn.lost.code)
        elif work.cancelled():
            if self._turn.handed_over and self._call.server.conversations.closing:
                self._end(TurnEnded(why="stopped", message=INTERRUPTED["stopped"]))
        elif isinstance(error := work.exception(), StoreError):
            self._fail(str(error), error.code)

    def _dropped(self, error: Exception) -> None:
        """Send `error` as the result of the call, because an entry cannot be read or sent to the client."""
        if isinstance(error, MemoryError):
            self._fail(OUT_OF_MEMORY, RESOURCE_LIMIT)
        elif isinstance(error, VisibleError):
            self._fail(str(error), error.code)
        else:
            self._fail(f"internal error: {type(error).__name__}: {error}", INTERNAL_ERROR)

    def _lost(self) -> None:
        """Stop waiting, because the client has closed the stream of the call. The client can resume the call."""
        if not self._ended:
            self._session.abandoned_turns[self._conversation.id] = self._before
            self._stop_waiting()
            self._call.call.drop()

    def _stop_waiting(self) -> None:
        """Stop sending events and progress notifications, and remove the reader and the callbacks of the call."""
        self._ended = True
        self._call.call.finished()
        self._subscription.close()
        self._session.cancel_on_leave(self)
        self._progress.stop()
        if self._turn is not None:
            self._turn.work.remove_done_callback(self._work_ended)
        if self._followers_timer is not None:
            self._followers_timer.cancel()

    def _fail(self, message: str, code: str) -> None:
        self._end(TurnEnded(why="failed", message=message, code=code))

    def _end(self, ended: TurnEnded | None, text: str = "") -> None:
        """Send the result of the call. If the turn has ended, the result contains `ended.message`: the last message
        of a completed turn, or the reason why the turn was not completed. If the turn is waiting for an approval,
        `ended` is None and the result contains `text`.
        """
        if not self._ended:
            self._stop_waiting()
            text = text if ended is None else ended.message or ""
            self._progress.before_result(partial(self._answer, text, ended))

    def _answer(self, text: str, ended: TurnEnded | None) -> None:
        conversation = self._conversation
        self._call.answer(turn_result(conversation.id, text, ended, self._notes, self._features, self._workspace))
        self._call.call.finished()
