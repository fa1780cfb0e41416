"""The tool `conversationRename`, which sets the title of a conversation."""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationRenameArguments, PlainOk

__all__ = ["rename"]


async def rename(call: ToolCall, args: ConversationRenameArguments) -> CallToolResult:
    conversation = call.conversation_for_command(args.conversation_id)
    await conversation.rename(args.title, deadline=call.deadline)
    return typed_result(PlainOk())
