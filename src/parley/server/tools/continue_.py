"""`conversationContinue`: begin a turn without a message, after a turn that was interrupted or failed."""

from __future__ import annotations

from parley.runtime.turn_runner import LocalTurn
from parley.server.toolcall import ToolCall
from parley.wire.mcp import typed_result
from parley.wire.tools import ConversationArguments, PlainOk

__all__ = ["continue_"]


async def continue_(call: ToolCall, args: ConversationArguments) -> None:
    conversation = call.conversation_for_command(args.conversation_id)

    def began(turn: LocalTurn | None) -> None:
        if turn is not None:
            call.session.note_turn(conversation, turn)
        call.answer(typed_result(PlainOk()))  # the answer must be sent before the first event of the turn

    await conversation.continue_turn(
        principal=call.principal.ref, resolve=call.session.loader.choose, deadline=call.deadline, began=began
    )
