"""The tool `conversationContinue`, which begins a turn without a message, after a turn that was interrupted or
failed.
"""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.server.tools.begun import answer_when_begun
from parley.wire.tools import ConversationArguments

__all__ = ["continue_"]


async def continue_(call: ToolCall, args: ConversationArguments) -> None:
    conversation = call.conversation_for_command(args.conversation_id)
    await conversation.continue_turn(
        principal=call.principal.ref,
        resolve=call.session.loader.choose,
        deadline=call.deadline,
        began=answer_when_begun(call, conversation),
    )
