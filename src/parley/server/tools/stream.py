"""The tool `conversationStream`, which sends all events of a conversation or only the last events, and then live
events.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from parley.conversation.log import Entry
from parley.errors import BadArguments, UnknownConversation
from parley.ports.store import PAGE
from parley.runtime.conversation import Conversation
from parley.runtime.log_pages import scan_back
from parley.server.access import require_conversation, require_role
from parley.server.context import Role
from parley.server.encoders import hidden_events
from parley.server.errors import NoLogMessages, PositionBeyondEnd
from parley.server.hosts import Features
from parley.server.session import StreamState
from parley.server.streams import StreamStart, stream_end
from parley.server.toolcall import ToolCall
from parley.wire.ids import ConversationId, Seq
from parley.wire.mcp import typed_result
from parley.wire.tools import ConversationStreamArguments, PlainConversationStreamArguments, StreamStarted

__all__ = ["stream"]

LAST_BYTES: Final = 4 * 1024 * 1024
"""The maximum size in bytes of a snapshot of the last events. If the requested events exceed this size, the
snapshot contains fewer events. The size is limited because all events are read before the first byte is sent.
"""


async def stream(call: ToolCall, args: PlainConversationStreamArguments) -> None:
    if args.as_ == "log" and call.features.modern:
        raise NoLogMessages
    last, exclusive = None, False
    if isinstance(args, ConversationStreamArguments):
        last, exclusive = args.last, bool(args.exclusive)
    if exclusive:
        require_role(call.principal, Role.DRIVER)
    if last is not None and args.after is not None:
        raise BadArguments("`last` cannot be combined with `after`", field="last")
    conversation = await call.conversation(args.conversation_id)
    start = StreamStart(after=Seq(args.after or 0))
    if start.after > conversation.log.durable:
        raise PositionBeyondEnd(position=start.after, last=conversation.log.durable)
    if last is not None:
        start = await _start_of_last(conversation, last, call.features)
    if call.features.cancels_requests and call.call.cancelled:
        call.call.drop()
        return
    event_meta = call.features.additions if args.event_meta is None else args.event_meta
    event_meta = event_meta or call.session.may_reconnect
    if call.features.modern:
        await _hold(call, conversation, start, event_meta=event_meta, exclusive=exclusive)
        return
    as_log = args.as_ == "log"
    number = call.session.next_stream()
    state = StreamState(conversation.id, call.call.id, number, start.after, event_meta, as_log, start.before)
    async with call.session.saved_with(state) as state:
        if conversation.is_deleted:
            raise UnknownConversation(conversation.id)
        if call.features.cancels_requests and call.call.cancelled:
            call.call.drop()
            return
        call.answer(typed_result(StreamStarted()))
        call.streams.open(
            call.session,
            conversation,
            call.call,
            start,
            number=state.number,
            event_meta=event_meta,
            as_log=as_log,
            exclusive=exclusive,
        )


async def _hold(
    call: ToolCall, conversation: Conversation, start: StreamStart, *, event_meta: bool, exclusive: bool
) -> None:
    """Begin a stream that keeps the call open until the stream ends, as protocol version 2026-07-28 requires.

    If `event_meta` is True, events have a `_meta`. If `exclusive` is True, all other streams of the conversation
    are ended.
    """
    if call.rounds is not None and (state := call.rounds.previous) is not None:
        require_conversation(call.principal, ConversationId(state.conversation))
        await call.rounds.settle(conversation)
        if call.call.cancelled:
            call.call.drop()
            return
        start = replace(start, resumes_at=Seq(state.seq))
        exclusive = False  # a client that has taken over in the meantime keeps its stream
    if not call.features.event_notifications:  # a client that ignores events would wait for nothing
        call.answer(typed_result(stream_end(conversation, start.after)))
        return
    call.streams.hold(
        call.session, conversation, call.call, call.rounds, start, event_meta=event_meta, exclusive=exclusive
    )


async def _start_of_last(conversation: Conversation, count: int, features: Features) -> StreamStart:
    """Return the start of a stream whose snapshot contains the last `count` events."""
    first = Seq(conversation.log.durable + 1)
    size, left = 0, count

    def take(entry: Entry) -> bool:
        nonlocal first, size, left
        if left == 0 or size > LAST_BYTES:
            return False
        left -= entry.is_event  # command output is a record directly before the end event, so it does not count
        size += entry.size
        first = entry.seq
        return True

    more = await scan_back(
        conversation, first, take, page=min(PAGE, 4 * (count + 1)), hidden=hidden_events(features)
    )
    return StreamStart(after=Seq(first - 1), before=first if more else None)
