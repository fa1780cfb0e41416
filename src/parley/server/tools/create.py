"""The tool `conversationCreate`, which creates a conversation."""

from __future__ import annotations

from parley.server.opening import open_conversation
from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationCreateArguments, ConversationCreated, PlainConversationCreateArguments

__all__ = ["create"]


async def create(
    call: ToolCall, args: PlainConversationCreateArguments | ConversationCreateArguments
) -> CallToolResult:
    conversation = await open_conversation(call, args)
    call.session.note_request(conversation.id, call.call.id)
    conversation.start_tool_servers()
    return typed_result(ConversationCreated(conversation_id=conversation.id, model=conversation.settings.model))
