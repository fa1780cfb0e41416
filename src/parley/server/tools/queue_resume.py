"""The tool `queueResume`, which resumes the message queue of a conversation after a turn that was interrupted or
failed.
"""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationArguments, PlainOk

__all__ = ["resume_queue"]


async def resume_queue(call: ToolCall, args: ConversationArguments) -> CallToolResult:
    conversation = call.conversation_for_command(args.conversation_id)
    await conversation.resume_queue(principal=call.principal.ref, deadline=call.deadline)
    return typed_result(PlainOk())
