"""Runs one turn: requests a response from the model, runs the tool calls of the response, and repeats these steps
until a response has no tool calls.

`run_turn` records that a turn has completed or failed. If `run_turn` is cancelled, its caller records that the turn
was interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, assert_never

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from parley.agent.compaction import TokenMeter, compact_if_needed, summary_of_all
from parley.agent.cost import priced
from parley.agent.errors import ModelRefused, ReplyCutOff
from parley.agent.limits import AskToContinue, LimitGate, counted_if_cut, estimated_cost, notice_without_price
from parley.agent.model_report import model_request
from parley.agent.prompt import request_for
from parley.agent.retry import CONTENT_REFUSALS, OVERFLOWS, is_overflow, request_retry, with_retries
from parley.config.types import Settings
from parley.conversation.log import ENDS, ItemKind, LogPayload
from parley.conversation.records import (
    CallItem,
    CallOutput,
    InputRefused,
    MessageItem,
    ModelAsked,
    ModelItem,
    ModelSaid,
    OpaqueItem,
    ResponseUsed,
    TurnEnded,
)
from parley.conversation.turn_ends import limit_message, turn_end
from parley.errors import LIMIT_REACHED, ModelError, UnexpectedStatus
from parley.ports.clock import Clock
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    Model,
    ModelRequest,
    OpaqueDone,
    RawReasoningDelta,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    Retrying,
    TextDelta,
)
from parley.ports.tools import TurnTools
from parley.ports.transcript import Transcript
from parley.wire.events import (
    REPLY_CUT_OFF,
    AgentMessage,
    AgentReasoning,
    AgentReasoningRawContent,
    BackgroundEvent,
    EventBase,
    LimitReached,
    TokenCount,
    TurnEndReason,
    event_type,
)
from parley.wire.jsonrpc import is_json
from parley.wire.text import replace_surrogates

__all__ = ["BeforeEnd", "compact_turn", "end_at_limit", "run_turn"]

BeforeEnd = Callable[[], Awaitable[tuple[LogPayload, ...]]]
"""A function that is called before the end of a turn, and returns entries to append before the end."""


async def run_turn(
    transcript: Transcript,
    model: Model,
    tools: TurnTools,
    settings: Settings,
    clock: Clock,
    meter: TokenMeter,
    ask_to_continue: AskToContinue,
    before_end: BeforeEnd | None = None,
) -> TurnEnded:
    """Run the turn for the waiting input and for the messages that arrive during the turn. Return how the turn
    ended.

    If the turn was interrupted by a restart, it continues with the tool calls that have no output yet. When the
    turn reaches a limit, `ask_to_continue` is called. If the user does not agree, the turn fails. `before_end` is
    called before the turn ends. If messages arrive while `before_end` is running, and the turn has not failed, the
    turn continues.
    """
    gate = LimitGate(settings.limits, transcript, clock, ask_to_continue)
    if notice := notice_without_price(settings):
        await transcript.append(*notice)
    last_message: str | None = None
    overflows = cut_offs = pauses = 0
    reached = await _run_calls(transcript.history.open_calls, transcript, tools, gate)
    if reached is not None:
        return await end_at_limit(reached, transcript, before_end)
    while True:
        # let other tasks run, because a model that never waits must not block the event loop
        await asyncio.sleep(0)
        if (reached := await gate.before_request()) is not None:
            return await end_at_limit(reached, transcript, before_end)
        response = _Response()
        request: ModelRequest | None = None
        asked = ModelAsked(inputs=0)
        try:
            await compact_if_needed(transcript, model, tools.specs(), settings, clock, meter)
            await transcript.durable()
            history = transcript.history
            asked = ModelAsked(inputs=len(history.waiting))
            items, cuts = history.for_request()
            request = request_for(settings, items, tools.specs(), breaks=cuts)
            await with_retries(
                partial(_listen, transcript, model, request, response, settings),
                model,
                transcript,
                clock,
            )
            if response.refused is not None:
                response.items = [item for item in response.items if isinstance(item, MessageItem)]
                raise ModelRefused(response.refused)
            cut_offs = cut_offs + 1 if response.cut_calls else 0
            if response.cut_by and cut_offs == CUT_OFFS:
                response.items = [item for item in response.items if isinstance(item, MessageItem)]
                raise ReplyCutOff(response.cut_by, cut_offs)
        except ModelError as error:
            if request is not None and is_overflow(error) and overflows < OVERFLOWS:
                overflows += 1
                meter.overflowed(request)
                await transcript.append(asked)  # compaction must treat the input of this request as history
                asked = ModelAsked(inputs=0)
                with suppress(ModelError):  # without a summary, report the first failure
                    if await compact_if_needed(transcript, model, tools.specs(), settings, clock, meter):
                        continue
            # Complete texts that clients have seen stay in the history. Calls do not stay, because they did not run
            # and clients have not seen them.
            shown = (ModelSaid(item=item) for item in response.items if isinstance(item, MessageItem))
            refused = (InputRefused(),) if _is_refusal(error) and transcript.history.has_new_attachments else ()
            spent = (
                _cost(response, request, settings)
                if request and isinstance(error, ReplyCutOff | ModelRefused)
                else ()
            )
            entries = asked, *response.ended, *shown, *refused, *spent, *await _last(before_end)
            return await _end(
                transcript, "failed", replace_surrogates(str(error)), entries=entries, code=error.code
            )
        last_message = response.last_text or last_message
        if response.usage is not None:
            meter.reported(request, response.usage)
        cost = _cost(response, request, settings)
        entries = asked, *response.ended, *response.notice(), *response.records(), *cost
        pauses = pauses + 1 if response.is_paused else 0
        is_last = not response.calls and (not response.is_paused or pauses > MAX_PAUSES)
        if is_last and len(transcript.history.waiting) == asked.inputs:  # there is no new input
            if before_end is None:
                return await _end(transcript, "done", entries=entries, last_message=last_message)
            await transcript.append(*entries)
            last = await before_end()
            if not transcript.history.waiting:
                return await _end(transcript, "done", entries=last, last_message=last_message)
            await transcript.append(*last)
            continue
        await transcript.append(*entries)
        reached = await _run_calls(response.whole_calls, transcript, tools, gate)
        if reached is not None:
            return await end_at_limit(reached, transcript, before_end)


async def compact_turn(
    transcript: Transcript,
    model: Model,
    settings: Settings,
    clock: Clock,
    meter: TokenMeter,
    ask_to_continue: AskToContinue,
) -> TurnEnded | None:
    """Replace the history with a summary, and end the turn. Return how the turn ended. Return None if messages have
    arrived since the turn began; the caller then continues the turn with `run_turn`.

    If the turn has reached a limit, `ask_to_continue` is called before the request for the summary. If the user
    does not agree, or if the request fails, the turn fails and the history stays unchanged.
    """
    gate = LimitGate(settings.limits, transcript, clock, ask_to_continue)
    if notice := notice_without_price(settings):
        await transcript.append(*notice)
    if (reached := await gate.before_request()) is not None:
        return await end_at_limit(reached, transcript)
    try:
        entries = await summary_of_all(transcript, model, settings, clock, meter)
    except ModelError as error:
        return await _end(transcript, "failed", replace_surrogates(str(error)), code=error.code)
    if not transcript.history.waiting:
        return await _end(transcript, "done", entries=entries)
    await transcript.append(*entries)
    return None


async def end_at_limit(
    reached: LimitReached, transcript: Transcript, before_end: BeforeEnd | None = None
) -> TurnEnded:
    """End a turn that reached a limit, without running its remaining tool calls. Return how the turn ended.
    `before_end` is called first, and `reached` is the limit.
    """
    last = await _last(before_end)
    return await _end(transcript, "failed", limit_message(reached.limit), entries=last, code=LIMIT_REACHED)


async def _last(before_end: BeforeEnd | None) -> tuple[LogPayload, ...]:
    return () if before_end is None else await before_end()


async def _end(
    transcript: Transcript,
    why: TurnEndReason,
    message: str | None = None,
    *,
    entries: Sequence[LogPayload] = (),
    last_message: str | None = None,
    code: str | UnsetType = UNSET,
) -> TurnEnded:
    """Append `entries` and the entries that end the turn, in one write. Return the record of the end of the turn.

    `why` is the reason why the turn ends, and `message` is the error message of a failed turn. `entries` are the
    entries to append before the end of the turn, such as the entries of the last response. `last_message` is the
    model's last message. `code` is the error code of a failed turn.
    """
    end = turn_end(
        why,
        message,
        unanswered=transcript.history.unanswered,
        unreported=transcript.usage.unreported,
        queued=transcript.queue.waiting,
        last_message=last_message,
        code=code,
    )
    await transcript.append(*entries, *end)
    return TurnEnded(why=why, message=message, code=code)


def _cost(response: _Response, request: ModelRequest, settings: Settings) -> tuple[LogPayload, ...]:
    """Return the entries that record the token usage of a response: the count that the provider reported, or an
    estimate.
    """
    if (usage := response.priced_usage(settings)) is None:
        return estimated_cost(request, response.items, settings)
    return (ResponseUsed(usage=usage) if response.calls else usage,)


async def _run_calls(
    calls: Sequence[CallItem], transcript: Transcript, tools: TurnTools, gate: LimitGate
) -> LimitReached | None:
    """Run the tool calls of a response in order, and then append the token usage of the response for clients.

    Stop before a tool call that would exceed a limit, and return that limit. Return None if all tool calls were
    run.
    """
    for call in calls:
        if (reached := await gate.before_call()) is not None:
            return reached
        output = replace_surrogates(await tools.run(call))
        await transcript.append(CallOutput(call_id=call.call_id, output=output))
        await asyncio.sleep(0)  # a response may contain thousands of calls
    if (usage := transcript.usage.unreported) is not None:
        await transcript.append(usage)
    return None


TOO_LARGE: Final = 413
ATTACHMENT_WORDS: Final = ("image", "file", "media", "base64", "attachment", "pdf")
"""Words in a provider's error message that show that the provider has refused an image or a file."""
CUT_OFF: Final = "not run: the reply was cut off before the arguments of this call were complete ({reason}); \
make smaller calls"
"""The output that the model gets for a tool call that was received only in part."""
CUT_OFFS: Final = 3
"""The number of consecutive responses, each truncated in the middle of a tool call, after which the turn fails."""
MAX_PAUSES: Final = 20
"""The maximum number of consecutive responses that the provider may pause. One more paused response ends the turn.
"""


def _is_refusal(error: ModelError) -> bool:
    """Return whether `error` means that the provider refused an image or a file in the request."""
    if not isinstance(error, UnexpectedStatus) or error.status not in CONTENT_REFUSALS:
        return False
    body = error.body.lower()
    return error.status == TOO_LARGE or any(word in body for word in ATTACHMENT_WORDS)


class _Response:
    """The items and events of a model response that have been received so far."""

    def __init__(self) -> None:
        self.items: list[ModelItem] = []
        self.usage: TokenCount | None = None
        self.cache_write_tokens = 0
        self.ended: list[LogPayload] = []
        """The events of the response. They are appended to the log when the response has ended or failed."""
        self.cut_by: str | None = None
        """The reason why the provider truncated the response; None if the response is complete."""
        self.refused: str | None = None
        """The model's explanation of why it declined the request; None if the model did not decline."""
        self.is_paused = False
        """True if the provider has paused the response. The provider continues the response after the next request.
        """
        self.cut_calls: list[CallItem] = []
        """The tool calls that were received only in part. These tool calls are not run."""

    def priced_usage(self, settings: Settings) -> TokenCount | None:
        """Return the token counts of the response with their cost; None if the provider did not report the
        counts.
        """
        if self.usage is None:
            return None
        return priced(self.usage, settings, cache_write_tokens=self.cache_write_tokens)

    def clear(self) -> None:
        """Discard the content of the response. Call this before each attempt to send the request, because a retry
        begins a new response.
        """
        self.items.clear()
        self.ended.clear()
        self.cut_by = self.refused = None
        self.is_paused = False
        self.cut_calls.clear()

    def cut(self, reason: str) -> None:
        """Record that the provider ended the response for the reason `reason` before the model had finished.

        A tool call with incomplete arguments stays in the history with empty arguments, because providers refuse
        arguments that are not JSON. A tool call without a name is omitted. Reasoning that is not followed by a
        message or a tool call is omitted as well.
        """
        self.cut_by = reason
        items: list[ModelItem] = []
        for item in self.items:
            if not isinstance(item, CallItem) or is_json(item.arguments):
                items.append(item)
            elif item.name:
                cut = replace(item, arguments="{}", verbatim=UNSET)
                items.append(cut)
                self.cut_calls.append(cut)
        while items and isinstance(items[-1], OpaqueItem):
            items.pop()
        self.items = items

    def notice(self) -> list[BackgroundEvent]:
        """Return a list with the event that tells clients that the response was truncated. The list is empty if the
        response is complete.
        """
        if self.cut_by is None:
            return []
        calls = f"; calls not run: {len(self.cut_calls)}" if self.cut_calls else ""
        return [BackgroundEvent(message=replace_surrogates(f"{REPLY_CUT_OFF}{self.cut_by}{calls}"))]

    def records(self) -> list[LogPayload]:
        """Return the records of the response. A truncated tool call is not run. Instead of its output, the records
        contain an error message.
        """
        output = replace_surrogates(CUT_OFF.format(reason=self.cut_by))
        return [
            *(ModelSaid(item=item) for item in self.items),
            *(CallOutput(call_id=call.call_id, output=output) for call in self.cut_calls),
        ]

    @property
    def calls(self) -> list[CallItem]:
        return [item for item in self.items if isinstance(item, CallItem)]

    @property
    def whole_calls(self) -> list[CallItem]:
        cut = set(map(id, self.cut_calls))
        return [call for call in self.calls if id(call) not in cut]

    @property
    def last_text(self) -> str | None:
        texts = [item.text for item in self.items if isinstance(item, MessageItem)]
        return texts[-1] if texts else None


async def _listen(
    transcript: Transcript, model: Model, request: ModelRequest, response: _Response, settings: Settings
) -> None:
    """Send the request, stream the model's response to the transcript, and collect the items of the response in
    `response`.
    """
    response.clear()
    extend, show_raw = transcript.extend, settings.show_raw_agent_reasoning
    # These are looked up only once, because in Python 3.11 each access to an enum member runs code.
    message = ItemKind.MESSAGE
    counted = counted_if_cut(request, lambda: _text_so_far(response, transcript), transcript, settings)
    with model_request(settings) as report:
        async with counted, aclosing(model.stream(request)) as batches:
            async for batch in batches:
                batch, last = _without_the_end(batch)
                report.received(len(batch))
                for chunk in batch:
                    if type(chunk) is TextDelta:  # nearly all chunks are text deltas
                        extend(message, chunk.text)
                    elif isinstance(chunk, ReasoningDelta):
                        extend(ItemKind.REASONING, chunk.text)
                    elif isinstance(chunk, RawReasoningDelta):
                        if show_raw:
                            extend(ItemKind.RAW_REASONING, chunk.text)
                    else:
                        report.received(-1)
                        if isinstance(chunk, Retrying):
                            report.retried()
                        await transcript.append(*_take(chunk, response, transcript, show_raw=show_raw))
                for chunk in last:
                    response.ended += _take(chunk, response, transcript, show_raw=show_raw)
        report.used(response.priced_usage(settings))
        report.said(request, response.last_text)


def _without_the_end(batch: Sequence[Chunk]) -> tuple[Sequence[Chunk], Sequence[Chunk]]:
    """Split a batch of chunks into two parts: the chunks up to the last delta, and the chunks that end the
    response. The second part is empty if the batch does not end the response.
    """
    if type(batch[-1]) is not ResponseDone:
        return batch, ()
    size = len(batch)
    while size and not isinstance(batch[size - 1], TextDelta | ReasoningDelta | RawReasoningDelta):
        size -= 1
    return batch[:size], batch[size:]


def _take(chunk: Chunk, response: _Response, transcript: Transcript, *, show_raw: bool) -> list[LogPayload]:
    """Add a chunk that is not a delta to the response. Return the events to append for this chunk. Raw reasoning is
    among the events only if `show_raw` is True.
    """
    match chunk:
        case MessageDone(item=item):
            if text := item.text or _unfinished(ItemKind.MESSAGE, response, transcript):
                response.items.append(MessageItem(text=text, id=item.id, by=item.by))
                return [AgentMessage(message=text)]
        case ReasoningDone(summaries=summaries, raw=raw, item=opaque):
            if opaque is not None:
                response.items.append(opaque)
            thoughts: list[LogPayload] = [AgentReasoning(text=text) for text in summaries]
            if show_raw:
                thoughts += [AgentReasoningRawContent(text=text) for text in raw]
            return thoughts
        case CallDone(item=call):
            response.items.append(call)
        case OpaqueDone(item=opaque, search=search):
            if opaque is not None:
                response.items.append(opaque)
            return [] if search is None else [search]
        case ResponseDone(usage=usage, cut_by=cut_by):
            response.usage, response.cache_write_tokens = usage, chunk.cache_write_tokens
            response.refused, response.is_paused = chunk.refused, chunk.is_paused
            seen = _left_unfinished(response, transcript)
            if cut_by is not None:
                response.cut(cut_by)
            return seen
        case Retrying():
            return [request_retry(chunk)]
        case TextDelta() | ReasoningDelta() | RawReasoningDelta():
            raise TypeError(f"{chunk!r} is a delta")
        case _:
            assert_never(chunk)
    return []


def _text_so_far(response: _Response, transcript: Transcript) -> list[ModelItem]:
    return [*response.items, *(MessageItem(text=_unfinished(kind, response, transcript)) for kind in ItemKind)]


def _unfinished(kind: ItemKind, response: _Response, transcript: Transcript) -> str:
    """Return the text so far of the open item of the given kind. Clients have seen this text, but no event has
    completed it. Return an empty string if there is no such item.
    """
    has_ended = any(isinstance(one, EventBase) and ENDS.get(event_type(one)) is kind for one in response.ended)
    return "" if has_ended else transcript.unfinished(kind)


def _left_unfinished(response: _Response, transcript: Transcript) -> list[LogPayload]:
    """Return the final events of the items that are still open at the end of the response. These events are
    necessary because clients have already received the text of the items. If a message is open, also add its text
    to the items in `response`.
    """
    seen: list[LogPayload] = []
    if text := _unfinished(ItemKind.REASONING, response, transcript):
        seen.append(AgentReasoning(text=text))
    if text := _unfinished(ItemKind.RAW_REASONING, response, transcript):
        seen.append(AgentReasoningRawContent(text=text))
    if text := _unfinished(ItemKind.MESSAGE, response, transcript):
        calls = (place for place, item in enumerate(response.items) if isinstance(item, CallItem))
        response.items.insert(next(calls, len(response.items)), MessageItem(text=text))
        seen.append(AgentMessage(message=text))
    return seen
