"""The tool `queueRemove`, which removes a queued message."""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.wire.ids import MessageId
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import PlainOk, QueueRemoveArguments

__all__ = ["remove_queued"]


async def remove_queued(call: ToolCall, args: QueueRemoveArguments) -> CallToolResult:
    conversation = call.conversation_for_command(args.conversation_id)
    message_id = MessageId(str(args.message_id))
    await conversation.remove_queued(message_id, principal=call.principal.ref, deadline=call.deadline)
    return typed_result(PlainOk())
