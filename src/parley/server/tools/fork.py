"""The tool `conversationFork`, which creates a conversation with the history of another conversation."""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.wire.ids import MessageId
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationForkArguments, ConversationForked

__all__ = ["fork"]


async def fork(call: ToolCall, args: ConversationForkArguments) -> CallToolResult:
    message = None if args.at_message_id is None else MessageId(str(args.at_message_id))
    forked = await call.server.conversations.fork(
        call.visible(args.conversation_id), at=message, is_limited=call.principal.is_limited
    )
    return typed_result(ConversationForked(conversation_id=forked))
