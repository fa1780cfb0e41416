"""`conversationStatus`: how a conversation stands."""

from __future__ import annotations

import os

from parley.server.times import iso
from parley.server.toolcall import ToolCall
from parley.server.wording import listed
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationArguments, ConversationStatusResult, Owner

__all__ = ["status"]


async def status(call: ToolCall, args: ConversationArguments) -> CallToolResult:
    conversation = call.conversation(args.conversation_id)
    state = conversation.state
    question = conversation.questions.open
    running = conversation.turn is not None
    result = ConversationStatusResult(
        state=state.phase.value,
        seq=conversation.log.last,
        title=state.title,
        cwd=state.cwd,
        model=state.model,
        updated_at=iso(state.updated_at),
        questions=() if question is None else (listed(question, conversation.id),),
        tokens=state.tokens,
        owner=Owner(pid=os.getpid(), since=iso(state.since)) if running else None,
    )
    return typed_result(result)
