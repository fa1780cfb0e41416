"""A call that runs a turn to its end: `codex` and `codex-reply`.

The call is a reader of the conversation that gets `codex/event` pairs. It answers its request when it has passed
the end of the turn, so the answer never overtakes an event. At 2025-11-25 a call whose cancellation interrupted the
turn gets the events and no answer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.common.os_errors import OUT_OF_MEMORY
from parley.conversation.log import Cursor, Entry
from parley.conversation.log_queries import TurnOutcome, last_text, turn_end_in
from parley.conversation.records import QuestionAsked, TurnEnded, TurnStarted, record_type
from parley.conversation.turn_ends import INTERRUPTED
from parley.errors import RESOURCE_LIMIT, StoreFailed
from parley.runtime.conversation import Conversation
from parley.runtime.log_pages import last_turn_end
from parley.runtime.message_intake import Accepted
from parley.runtime.turn_runner import Turn
from parley.server.encoders import CodexEncoder
from parley.server.progress import ProgressReporter
from parley.server.result_notes import ResultNotes, returned_question
from parley.server.subscription import Subscription
from parley.server.toolcall import ToolCall
from parley.wire.events import EventBase, TaskComplete, event_type
from parley.wire.ids import START, EventId, Seq
from parley.wire.items import InputItem
from parley.wire.jsonrpc import encode
from parley.wire.mcp import CallToolResult, TextContent
from parley.wire.tools import CodexResult

__all__ = ["TurnWaiter"]

RESUME_ENTRIES: Final = 50
"""How many entries before its position a resumed call reads, to find the text that the client has received."""
BEFORE_THE_TURN: Final = EventId("0")

_STARTED: Final = record_type(TurnStarted)
_ENDED: Final = record_type(TurnEnded)
_COMPLETE: Final = event_type(TaskComplete)
_ASKED: Final = record_type(QuestionAsked)


class TurnWaiter:
    """Submits a message, sends the events of its turn, and answers the call when the turn ends."""

    def __init__(self, call: ToolCall, conversation: Conversation, *, skipped: int = 0) -> None:
        """Create the call. The client already has the first `skipped` messages of the first entry."""
        self._call, self._conversation = call, conversation
        self._features, self._session = call.features, call.session
        reply = call.call.context.reply
        self._encoder = CodexEncoder(call.call.id, self._features, event_id=BEFORE_THE_TURN)
        events = reply.events(call.call.id, conversation.id, lambda: self._encoder.event_id)
        self._out = call.session.events_to(events)
        self._subscription = Subscription(
            call.session,
            conversation,
            self._out,
            self._encoder,
            questions=reply.questions,
            on_entry=self._passed,
            on_dropped=lambda: self._fail(OUT_OF_MEMORY, RESOURCE_LIMIT),
            waits_for_turn=True,
            skipped=skipped,
        )
        self._progress = ProgressReporter(
            reply.notifications, call.progress_token, delayed=self._features.full_version
        )
        self._notes = ResultNotes(conversation.id)
        self._before = START
        """The position before the turn."""
        self._turn: Turn | None = None
        self._last_text: str | None = None
        """The last text of the turn, once it is complete."""
        self._earlier_end: TurnOutcome | None = None
        """The end of a turn that an earlier call stopped waiting for, if it is not in memory."""
        self._followers_timer: asyncio.TimerHandle | None = None
        self._cancelled = False
        """True when the client has cancelled the call while its turn ran."""
        self._ended = False
        call.session.note_request(conversation.id, call.call.id)

    def send(self, event: EventBase) -> None:
        """Send an event to this call alone."""
        self._encoder.event(event_type(event), encode(event), self._out.send)

    async def run_first(self, content: tuple[InputItem, ...]) -> None:
        """Begin a new conversation. The events of the turn have the id of this request."""
        await self._submit(content, EventId(str(self._call.call.id)), follow_from=START)

    async def run_next(self, content: tuple[InputItem, ...]) -> None:
        """Continue a conversation: begin a turn, or join the running one."""
        left, log = self._session.left_turns.get(self._conversation.id), self._conversation.log
        if left is not None and left < log.base:
            self._earlier_end = await last_turn_end(self._conversation, after=left, up_to=log.durable)
        await self._submit(content, None, follow_from=None)

    async def resume(self, after: Seq, event_id: EventId) -> None:
        """Continue a call whose connection was lost: send the events after a position, and answer at the end of the
        turn, which may already be in the log.

        Raises:
            StoreError: the log cannot be read.
        """
        for entry in await self._conversation.read_after(Seq(max(START, after - RESUME_ENTRIES))):
            if entry.seq <= after and entry.type in (_STARTED, _COMPLETE):
                self._last_text = last_text((entry,)) if entry.type == _COMPLETE else None
        source = self._conversation.log
        rest = source.between(after, source.durable) if after >= source.base else ()
        is_running = after >= source.base and not any(entry.type == _ENDED for entry in rest)
        self._encoder.change_event_id(event_id)
        self._follow(after, self._conversation.turn if is_running else None)
        self._subscription.send_now()

    async def _submit(
        self, content: tuple[InputItem, ...], event_id: EventId | None, follow_from: Seq | None
    ) -> None:
        def accepted(message: Accepted) -> None:
            if message.began and message.turn is not None:
                self._session.note_turn(self._conversation, message.turn)
            if follow_from is None and message.turn is not None:
                self._encoder.change_event_id(message.turn.event_id)
            self._follow(Seq(message.first - 1) if follow_from is None else follow_from, message.turn)

        await self._conversation.submit(
            content,
            event_id=event_id,
            resolve=self._session.loader.choose,
            deadline=self._call.deadline,
            accepted=accepted,
        )

    def _follow(self, after: Seq, turn: Turn | None) -> None:
        """Send the events after a position. `turn` is None if the turn is over: its process died after it had
        accepted the message, and the end of the turn is in the log."""
        if self._session.has_left:
            return  # the turn runs without the client
        self._before, self._turn = after, turn
        self._note_earlier_turn(after)
        self._session.on_leave(self, self._leave)
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
        """Let the turn begin without waiting for tool servers, so that it ends at once."""
        if not self._features.is_timeout(self._call.call.cancel_reason):
            self._conversation.stop_waiting_for_tool_servers()

    def _cancel(self) -> None:
        """Interrupt the turn, or only stop waiting for it if the cancellation is a timeout of the client."""
        assert self._turn is not None
        if self._features.is_timeout(self._call.call.cancel_reason):
            self._session.left_turns[self._conversation.id] = self._before
            self._leave()
            self._call.call.drop()
            return
        if self._features.full_version and not self._turn.work.done():
            self._cancelled = True
            self._progress.stop()
        self._conversation.interrupt(self._turn)

    def _passed(self, entry: Entry) -> None:
        self._notes.passed(entry)
        if entry.type == _STARTED:
            self._encoder.change_event_id(msgspec.json.decode(entry.encoded, type=TurnStarted).event_id)
        elif entry.type == _ENDED:
            ended = msgspec.json.decode(entry.encoded, type=TurnEnded)
            if self._cancelled and ended.why == "interrupted":
                self._leave()
                self._call.call.drop()
            elif ended.why == "done":
                self._end(TurnEnded(why="done", message=self._last_text))
            else:
                self._end(ended)
        elif entry.type == _COMPLETE:
            self._last_text = last_text((entry,))
        if entry.is_event and entry.type not in self._encoder.hidden:
            self._progress.event(entry.type)
        if entry.type == _ASKED:
            self._return_approval()

    def _return_approval(self) -> None:
        """Answer with the open approval if no client can be asked and the settings say so."""
        conversation, approval = self._conversation, self._conversation.open_approval
        if self._ended or approval is None or not conversation.returns_approval:
            return
        if left := conversation.seconds_for_followers:
            self._followers_timer = asyncio.get_running_loop().call_later(left, self._return_approval)
            return
        may_answer = self._features.may_answer_approvals
        self._end(None, returned_question(approval.request, conversation.id, may_answer=may_answer))

    def _note_earlier_turn(self, before: Seq) -> None:
        """Add the end of a turn that an earlier call of this client stopped waiting for."""
        left = self._session.left_turns.pop(self._conversation.id, None)
        if left is None:
            return
        log = self._conversation.log
        in_memory = log.between(max(left, log.base), before)
        if (end := turn_end_in(in_memory) or self._earlier_end) is not None:
            self._notes.earlier_turn(end.text or "")

    def _work_ended(self, work: asyncio.Future[TurnEnded]) -> None:
        """Answer the call if no reader will pass the end of the turn: it could not be written, or another process
        writes it after this server has ended."""
        assert self._turn is not None
        if self._turn.lost is not None:
            self._fail(str(self._turn.lost), self._turn.lost.code)
        elif work.cancelled():
            if self._turn.handed_over and self._call.server.conversations.closing:
                self._end(TurnEnded(why="stopped", message=INTERRUPTED["stopped"]))
        elif isinstance(error := work.exception(), StoreFailed):
            self._fail(str(error), error.code)

    def _lost(self) -> None:
        """Stop waiting, because the client has closed the stream of the call. It may resume it."""
        if not self._ended:
            self._session.left_turns[self._conversation.id] = self._before
            self._leave()
            self._call.call.drop()

    def _leave(self) -> None:
        """Send nothing more, and remove everything that is registered for the call."""
        self._ended = True
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
        """Answer the call; `ended` is None if the turn waits for an approval."""
        if not self._ended:
            self._leave()
            text = text if ended is None else ended.message or ""
            self._progress.before_result(partial(self._answer, text, ended))

    def _answer(self, text: str, ended: TurnEnded | None) -> None:
        is_error = ended is not None and ended.why != "done"
        structured: CodexResult | UnsetType = UNSET
        content: tuple[TextContent, ...] = (TextContent(text=text),)
        shown = text
        if self._features.explains_results:
            content = (*content, TextContent(text=self._notes.text))
            shown = "\n\n".join(filter(None, (text, self._notes.work_notes)))
        if self._features.additions:
            conversation_id = self._conversation.id
            structured = CodexResult(
                thread_id=conversation_id,
                session_id=conversation_id,
                content=shown,
                message=text,
                reason=UNSET if ended is None else ended.why,
                code=UNSET if ended is None else ended.code,
            )
        self._call.answer(
            CallToolResult(
                error=text if is_error else UNSET,
                content=content,
                is_error=True if is_error else UNSET,
                structured_content=structured,
            )
        )
        self._call.call.finished()
