"""The tool `queueList`, which lists the queued messages of a conversation."""

from __future__ import annotations

from parley.server.times import iso
from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.principals import name_of
from parley.wire.tools import ConversationArguments, QueuedItem, QueueListResult

__all__ = ["list_queue"]


async def list_queue(call: ToolCall, args: ConversationArguments) -> CallToolResult:
    conversation = await call.conversation(args.conversation_id)
    waiting = await conversation.queued()
    items = tuple(
        QueuedItem(
            message_id=one.message_id,
            content=one.content,
            queued_at=iso(one.at),
            principal=name_of(one.principal),
        )
        for one in waiting
    )
    return typed_result(QueueListResult(messages=items, paused=conversation.is_queue_paused))
