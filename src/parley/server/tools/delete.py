"""The tool `conversationDelete`, which deletes a conversation permanently."""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationArguments, PlainOk

__all__ = ["delete"]


async def delete(call: ToolCall, args: ConversationArguments) -> CallToolResult:
    await call.server.conversations.delete(call.visible(args.conversation_id), deadline=call.deadline)
    return typed_result(PlainOk())
