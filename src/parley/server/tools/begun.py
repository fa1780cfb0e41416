"""Sends the response to a tool call that begins a turn without a message."""

from __future__ import annotations

from collections.abc import Callable

from parley.runtime.conversation import Conversation
from parley.runtime.turn_runner import LocalTurn
from parley.server.toolcall import ToolCall
from parley.wire.mcp import typed_result
from parley.wire.tools import PlainOk

__all__ = ["answer_when_begun"]


def answer_when_begun(call: ToolCall, conversation: Conversation) -> Callable[[LocalTurn | None], None]:
    """Return a callback that sends the response to the call. The callback must be called when the start of the turn
    is durable. Its argument is the turn; None if another node runs the turn.
    """

    def began(turn: LocalTurn | None) -> None:
        if turn is not None:
            call.session.note_turn(conversation, turn)
        call.answer(typed_result(PlainOk()))  # the response must be sent before the first event of the turn

    return began
