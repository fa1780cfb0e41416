"""A call that runs a turn to its end: `codex` and `codex-reply`.

It is one more reader of the conversation: one that gets `codex/event` pairs, and that answers
its request when it has passed the end of the turn. So the answer can never overtake an event.
At 2025-11-25 a call whose cancellation interrupted the turn gets the events and no answer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.common.os_errors import OUT_OF_MEMORY
from parley.conversation.log import Cursor, Entry
from parley.conversation.log_queries import last_text
from parley.conversation.records import QuestionAsked, TurnEnded, TurnStarted, record_type
from parley.conversation.turn_ends import INTERRUPTED
from parley.errors import StoreFailed
from parley.runtime.conversation import Conversation
from parley.runtime.messages import Accepted
from parley.runtime.readers import Reader
from parley.runtime.turns import Turn
from parley.server.encoders import CodexEncoder
from parley.server.progress import ProgressReporter
from parley.server.result_notes import ResultNotes, returned_question
from parley.server.toolcall import ToolCall
from parley.wire.events import EventBase, event_type
from parley.wire.ids import START, EventId, Seq
from parley.wire.items import InputItem
from parley.wire.jsonrpc import encode
from parley.wire.mcp import CallToolResult, TextContent
from parley.wire.tools import CodexResult

__all__ = ["TurnWaiter"]

BEFORE_THE_TURN: Final = EventId("0")

_STARTED: Final = record_type(TurnStarted)
_ENDED: Final = record_type(TurnEnded)
_ASKED: Final = record_type(QuestionAsked)


class TurnWaiter:
    def __init__(self, call: ToolCall, conversation: Conversation) -> None:
        self._call, self._conversation = call, conversation
        self._features = call.session.features
        self._out = call.session.events_out
        self._voice = CodexEncoder(call.call.id, full=self._features.additions, event_id=BEFORE_THE_TURN)
        self._notes = ResultNotes(conversation.id)
        self._before = START
        """The position before the turn."""
        call.session.asking.came_by(conversation.id, call.call.id)
        self._reader: Reader | None = None
        self._progress = ProgressReporter(
            call.session.out, call.progress_token, delayed=self._features.full_version
        )
        self._cancelled = False
        """True when the client has cancelled the call while its turn ran."""
        self._ended = False

    def say(self, event: EventBase) -> None:
        """An event for this call alone."""
        self._out.send(self._voice.event(event_type(event), encode(event)))

    async def run_first(self, words: tuple[InputItem, ...]) -> None:
        """Begin a new conversation: the turn's events have the id of this request."""
        wanted = EventId(str(self._call.call.id))
        await self._submit(words, wanted, follow_from=START)

    async def run_next(self, words: tuple[InputItem, ...]) -> None:
        """Go on with a conversation: begin a turn, or join the one that runs."""
        await self._submit(words, None, follow_from=None)

    async def _submit(
        self, words: tuple[InputItem, ...], event_id: EventId | None, follow_from: Seq | None
    ) -> None:
        def accepted(message: Accepted) -> None:
            if follow_from is None and message.turn is not None:
                self._voice.change_event_id(message.turn.event_id)
            after = Seq(message.first - 1) if follow_from is None else follow_from
            self._follow(after, message.turn)

        await self._conversation.submit(words, event_id=event_id, deadline=self._call.deadline, accepted=accepted)

    def _follow(self, after: Seq, turn: Turn | None) -> None:
        """Without a turn, it is over: its process died when it had taken the message, and the end is in the log."""
        self._before = after
        self._reader = Reader(
            self._conversation.log,
            Cursor(after),
            self._out,
            self._voice,
            passed=self._passed,
            on_dropped=lambda: self._end(OUT_OF_MEMORY, is_done=False),
        )
        session = self._call.session
        self._note_earlier_turn(after)
        session.attach(self._conversation, self._reader, waits_for_turn=True)
        session.asking.ask_what_is_open(self._conversation)  # where it joins a turn that waits for an answer
        if turn is not None:
            self._call.call.on_cancel(partial(self._cancel, turn))
            turn.work.add_done_callback(partial(self._work_ended, turn))
        else:
            self._reader.pump()
        self._progress.begin()
        self._return_question()

    def cancel_before_it_begins(self) -> None:
        """Let the turn begin without waiting for tool servers: it then ends where it begins."""
        if not self._features.is_timeout(self._call.call.cancel_reason):
            self._conversation.stop_waiting_for_tool_servers()

    def _cancel(self, turn: Turn) -> None:
        """Interrupt the turn, or only stop waiting for it where the client's patience has ended."""
        if self._features.is_timeout(self._call.call.cancel_reason):
            self._call.session.left_turns[self._conversation.id] = self._before
            self._leave()
            self._call.call.drop()
            return
        if self._features.full_version and not turn.work.done():
            self._cancelled = True
            self._progress.stop()
        self._conversation.interrupt(turn)

    def _passed(self, entry: Entry) -> None:
        self._call.session.asking.passed(self._conversation, entry)
        self._notes.passed(entry)
        if entry.type == _STARTED:
            self._voice.change_event_id(msgspec.json.decode(entry.encoded, type=TurnStarted).event_id)
        elif entry.type == _ENDED:
            ended = msgspec.json.decode(entry.encoded, type=TurnEnded)
            is_done = ended.why == "done"
            said = last_text(self._conversation.log.entries, up_to=entry.seq) if is_done else ended.message
            if self._cancelled and ended.why == "interrupted":
                self._leave()
                self._call.call.drop()
            else:
                self._end(said or "", is_done=is_done)
        elif entry.is_event and entry.type not in self._voice.hidden:
            self._progress.event(entry.type)
        if entry.type == _ASKED:
            self._return_question()

    def _return_question(self) -> None:
        """Answer with the open question, where no client can be asked and the settings want it returned."""
        conversation = self._conversation
        approval = conversation.open_approval
        if self._ended or approval is None or not conversation.returns_approval:
            return
        if left := conversation.seconds_for_followers:
            asyncio.get_running_loop().call_later(left, self._return_question)
            return
        may_answer = self._features.may_answer_approvals
        self._end(returned_question(approval.asked, conversation.id, may_answer=may_answer), is_done=True)

    def _note_earlier_turn(self, before: Seq) -> None:
        """Say how the turn ended that an earlier call of this client stopped waiting for."""
        left = self._call.session.left_turns.pop(self._conversation.id, None)
        if left is None:
            return
        entries = self._conversation.log.entries
        ends = [entry for entry in entries[left:before] if entry.type == _ENDED]
        if ends:
            ended = msgspec.json.decode(ends[-1].encoded, type=TurnEnded)
            said = last_text(entries, up_to=ends[-1].seq) if ended.why == "done" else ended.message
            self._notes.earlier_turn(said or "")

    def _work_ended(self, turn: Turn, work: asyncio.Future[TurnEnded]) -> None:
        """Where the end of the turn cannot be written down, or comes when this server has ended, nobody here passes
        it: the call is answered all the same."""
        if turn.lost is not None:
            self._end(str(turn.lost), is_done=False)
        elif work.cancelled():
            if turn.is_left and self._call.host.conversations.closing:
                self._end(INTERRUPTED["stopped"], is_done=False)
        elif isinstance(error := work.exception(), StoreFailed):
            self._end(str(error), is_done=False)

    def _leave(self) -> None:
        """Follow the conversation no longer."""
        self._ended = True
        assert self._reader is not None
        self._call.session.detach(self._conversation, self._reader)
        self._progress.stop()

    def _end(self, text: str, *, is_done: bool) -> None:
        if not self._ended:
            self._leave()
            self._progress.before_result(partial(self._answer, text, is_done=is_done))

    def _answer(self, text: str, *, is_done: bool) -> None:
        structured: CodexResult | UnsetType = UNSET
        content: tuple[TextContent, ...] = (TextContent(text=text),)
        shown = text
        if self._features.explains_results:
            content = (*content, TextContent(text=self._notes.text))
            shown = "\n\n".join(filter(None, (text, self._notes.about_the_work)))
        if self._features.additions:
            conversation_id = self._conversation.id
            structured = CodexResult(
                thread_id=conversation_id, session_id=conversation_id, content=shown, message=text
            )
        self._call.answer(
            CallToolResult(
                error=UNSET if is_done else text,
                content=content,
                is_error=UNSET if is_done else True,
                structured_content=structured,
            )
        )
        self._call.call.finished()
