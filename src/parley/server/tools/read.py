"""The tool `conversationRead`, which returns the events after or before a position. The tool is for clients that
cannot receive notifications.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from msgspec import UNSET, Raw

from parley.conversation.log import Entry, LogView, output_of, visible
from parley.conversation.output import encode_output_delta
from parley.errors import BadArguments
from parley.ports.store import PAGE
from parley.runtime.conversation import Conversation
from parley.runtime.durable_log import READ_BYTES
from parley.runtime.log_pages import scan_back
from parley.server.access import may_call_approval_answer, may_interrupt
from parley.server.encoders import encoded_event, hidden_events
from parley.server.errors import PositionBeyondEnd
from parley.server.hosts import Features
from parley.server.times import iso
from parley.server.toolcall import ToolCall
from parley.wire.ids import Seq
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import (
    ConversationReadArguments,
    ConversationReadResult,
    OpenText,
    PlainConversationReadArguments,
    PositionedEvent,
)

__all__ = ["read"]

DEFAULT_LIMIT: Final = 100


async def read(call: ToolCall, args: PlainConversationReadArguments) -> CallToolResult:
    before = args.before if isinstance(args, ConversationReadArguments) else None
    has_times = isinstance(args, ConversationReadArguments) and args.times is True
    if before is not None:
        for name in ("after", "wait_seconds"):
            if getattr(args, name) is not None:
                raise BadArguments(f"`before` cannot be combined with `{name}`", field=name)
    conversation = await call.conversation(args.conversation_id)
    log = conversation.log
    after, limit = Seq(args.after or 0), args.limit or DEFAULT_LIMIT
    if before is not None:
        return typed_result(await _read_back(conversation, Seq(before), limit, call.features, has_times=has_times))
    if after > log.durable:
        raise PositionBeyondEnd(position=after, last=log.durable)
    hidden = hidden_events(call.features)

    def note_poll() -> None:
        if may_interrupt(call.principal):
            conversation.approvals.note_poll(can_answer=may_call_approval_answer(call.principal, call.features))

    note_poll()

    found: list[Entry] = []
    position = after

    async def read_more() -> None:
        """Read entries until `found` contains more than `limit` entries, or until the log ends."""
        nonlocal position
        while len(found) <= limit and (page := await conversation.read_after(position, limit=4 * (limit + 1))):
            found.extend(visible(page, hidden))
            position = page[-1].seq

    await read_more()
    if not found and args.wait_seconds:
        if call.features.cancels_requests:
            call.call.stop_on_cancel()
        try:
            with call.call.waiting():
                async with asyncio.timeout(args.wait_seconds):
                    while not found and not call.server.conversations.closing:
                        await conversation.wait_beyond(position)
                        await read_more()
        except TimeoutError:
            await read_more()  # an entry may have been appended at the time of the timeout
        finally:
            call.call.finished()
    note_poll()  # an approval may have been requested in the meantime
    events: list[PositionedEvent] = []
    page = 0
    while page < len(found) and len(events) < limit:  # each piece of an output counts as an event
        events += _events(found[page], call.features, has_times=has_times)
        page += 1
    more = page < len(found)
    result = ConversationReadResult(
        events=tuple(events),
        open=() if more or not log.is_durable else tuple(_open(log)),
        seq=found[page - 1].seq if more else position,
        state=conversation.phase.value,
    )
    return typed_result(result)


async def _read_back(
    conversation: Conversation, before: Seq, limit: int, features: Features, *, has_times: bool
) -> ConversationReadResult:
    """Return the last events before the position `before`. Entries are read backwards until their events reach the
    number `limit` or exceed `READ_BYTES` bytes. If `has_times` is True, each event has its time.
    """
    pages: list[list[PositionedEvent]] = []
    last = Seq(min(before - 1, conversation.log.durable))
    count = size = 0

    def take(entry: Entry) -> bool:
        nonlocal count, size
        if count >= limit or size > READ_BYTES:
            return False
        pages.append(list(_events(entry, features, has_times=has_times)))
        count += len(pages[-1])
        size += sum(memoryview(event.msg).nbytes for event in pages[-1])
        return True

    more = await scan_back(
        conversation, Seq(last + 1), take, page=min(PAGE, 4 * (limit + 1)), hidden=hidden_events(features)
    )
    events = tuple(event for page in reversed(pages) for event in page)
    return ConversationReadResult(
        events=events,
        open=(),
        seq=last,
        state=conversation.phase.value,
        before=events[0].seq if more else UNSET,
    )


def _events(entry: Entry, features: Features, *, has_times: bool) -> Iterator[PositionedEvent]:
    at = iso(entry.at) if has_times else UNSET
    if entry.is_event:
        yield PositionedEvent(seq=entry.seq, at=at, msg=Raw(encoded_event(entry, features)))
        return
    for stream in output_of(entry):
        for piece in stream.pieces():
            encoded = Raw(encode_output_delta(piece))
            yield PositionedEvent(seq=entry.seq, item=stream.id, offset=piece.offset, at=at, msg=encoded)


def _open(log: LogView) -> Iterator[OpenText]:
    for item in log.open.values():
        yield OpenText(item=item.id, type=item.type, text=item.text())
    for output in log.outputs.values():
        for offset, data in output.kept_ranges():
            yield OpenText(
                item=output.id,
                type=output.type,
                text=data.decode("utf-8", "replace"),
                call_id=output.call_id,
                stream=output.stream,
                offset=offset,
            )
