"""The tool `conversationInterrupt`, which interrupts the running turn of a conversation. If no turn is running, the
tool does nothing.
"""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationArguments, PlainOk

__all__ = ["interrupt"]


async def interrupt(call: ToolCall, args: ConversationArguments) -> CallToolResult:
    conversation = call.conversation_for_command(args.conversation_id)
    await conversation.interrupt_unfinished(principal=call.principal.ref, deadline=call.deadline)
    return typed_result(PlainOk())
