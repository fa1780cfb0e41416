"""The tool `conversationArchive`, which archives a conversation or restores an archived conversation."""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationArchiveArguments, PlainOk

__all__ = ["archive"]


async def archive(call: ToolCall, args: ConversationArchiveArguments) -> CallToolResult:
    conversation = call.visible(args.conversation_id)
    await call.server.conversations.archive(conversation, archived=args.archived is not False)
    return typed_result(PlainOk())
