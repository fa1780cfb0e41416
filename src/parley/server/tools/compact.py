"""The tool `conversationCompact`, which begins a turn that replaces the history of a conversation with a
summary.
"""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.server.tools.begun import answer_when_begun
from parley.wire.tools import ConversationArguments

__all__ = ["compact"]


async def compact(call: ToolCall, args: ConversationArguments) -> None:
    conversation = call.conversation_for_command(args.conversation_id)
    await conversation.compact(
        principal=call.principal.ref,
        resolve=call.session.loader.choose,
        deadline=call.deadline,
        began=answer_when_begun(call, conversation),
    )
