"""`conversationRead`: return events after a position, for clients that cannot receive notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from msgspec import Raw

from parley.conversation.log import Entry, Log, output_of, visible
from parley.conversation.output import encode_output_delta
from parley.server.encoders import encoded_event, hidden_events
from parley.server.errors import PositionBeyondEnd
from parley.server.hosts import Features
from parley.server.toolcall import ToolCall
from parley.wire.ids import Seq
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationReadArguments, ConversationReadResult, OpenText, PositionedEvent

__all__ = ["read"]

DEFAULT_LIMIT: Final = 100


async def read(call: ToolCall, args: ConversationReadArguments) -> CallToolResult:
    conversation = await call.conversation(args.conversation_id)
    log = conversation.log
    after, limit = Seq(args.after or 0), args.limit or DEFAULT_LIMIT
    if after > log.durable:
        raise PositionBeyondEnd(after=after, last=log.durable)
    hidden = hidden_events(call.features)
    may_answer = call.features.may_answer_approvals
    conversation.note_poll(can_answer=may_answer)

    found: list[Entry] = []
    position = after

    async def read_more() -> None:
        """Read until there are more entries than the limit, or no more."""
        nonlocal position
        while len(found) <= limit and (page := await conversation.read_after(position, limit=4 * (limit + 1))):
            found.extend(visible(page, hidden))
            position = page[-1].seq

    await read_more()
    if not found and args.wait_seconds:
        if call.features.full_version:
            call.call.stop_on_cancel()
        try:
            with call.call.waiting():
                async with asyncio.timeout(args.wait_seconds):
                    while not found and not call.server.conversations.closing:
                        await conversation.wait_beyond(position)
                        await read_more()
        except TimeoutError:
            await read_more()  # something may have been appended in the moment of the timeout
        call.call.finished()
    conversation.note_poll(can_answer=may_answer)  # an approval may have been requested meanwhile
    events: list[PositionedEvent] = []
    page = 0
    while page < len(found) and len(events) < limit:  # each part of an output counts
        events += _events(found[page], call.features)
        page += 1
    more = page < len(found)
    result = ConversationReadResult(
        events=tuple(events),
        open=() if more or not log.is_durable else tuple(_open(log)),
        seq=found[page - 1].seq if more else position,
        state=conversation.phase.value,
    )
    return typed_result(result)


def _events(entry: Entry, features: Features) -> Iterator[PositionedEvent]:
    if entry.is_event:
        yield PositionedEvent(seq=entry.seq, msg=Raw(encoded_event(entry, features)))
        return
    for stream in output_of(entry):
        for piece in stream.pieces():
            said = Raw(encode_output_delta(piece))
            yield PositionedEvent(seq=entry.seq, item=stream.id, offset=piece.offset, msg=said)


def _open(log: Log) -> Iterator[OpenText]:
    for item in log.open.values():
        yield OpenText(item=item.id, type=item.type, text=item.text())
    for output in log.outputs.values():
        for offset, said in output.kept_ranges():
            yield OpenText(
                item=output.id,
                type=output.type,
                text=said.decode("utf-8", "replace"),
                call_id=output.call_id,
                stream=output.stream,
                offset=offset,
            )
