"""`conversationStream`: send all events of a conversation, then live events."""

from __future__ import annotations

from parley.server.errors import PositionBeyondEnd
from parley.server.toolcall import ToolCall
from parley.wire.ids import Seq
from parley.wire.mcp import typed_result
from parley.wire.tools import ConversationStreamArguments, StreamStarted

__all__ = ["stream"]


async def stream(call: ToolCall, args: ConversationStreamArguments) -> None:
    conversation = await call.conversation(args.conversation_id)
    after = Seq(args.after or 0)
    if after > conversation.log.durable:
        raise PositionBeyondEnd(after=after, last=conversation.log.durable)
    if call.features.full_version and call.call.cancelled:
        call.call.drop()
        return
    event_meta = call.features.additions if args.event_meta is None else args.event_meta
    event_meta = event_meta or call.session.always_sends_positions
    call.answer(typed_result(StreamStarted()))
    call.streams.open(conversation, call.call, after=after, event_meta=event_meta, as_log=args.as_ == "log")
