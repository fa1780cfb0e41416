"""The tool `queueEdit`, which replaces the content of a queued message."""

from __future__ import annotations

from parley.server.errors import NoContent
from parley.server.toolcall import ToolCall
from parley.wire.ids import MessageId
from parley.wire.items import compact
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import PlainOk, QueueEditArguments

__all__ = ["edit_queued"]


async def edit_queued(call: ToolCall, args: QueueEditArguments) -> CallToolResult:
    if not args.content:
        raise NoContent
    conversation = call.conversation_for_command(args.conversation_id)
    message_id = MessageId(str(args.message_id))
    await conversation.edit_queued(
        message_id,
        compact(args.content),
        principal=call.principal.ref,
        is_limited=call.principal.is_limited,
        deadline=call.deadline,
    )
    return typed_result(PlainOk())
