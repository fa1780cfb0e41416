"""The tool `conversationMarkRead`, which stores the position up to which the sender has read a conversation."""

from __future__ import annotations

from parley.server.errors import PositionBeyondEnd
from parley.server.toolcall import ToolCall
from parley.wire.ids import Seq
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationMarkReadArguments, PlainOk

__all__ = ["mark_read"]


async def mark_read(call: ToolCall, args: ConversationMarkReadArguments) -> CallToolResult:
    conversation, conversations = call.visible(args.conversation_id), call.server.conversations
    last = (await conversations.head(conversation)).last
    if args.seq > last:
        raise PositionBeyondEnd(position=args.seq, last=last, argument="seq")
    await conversations.mark_read(conversation, call.principal.identity, Seq(args.seq))
    return typed_result(PlainOk())
