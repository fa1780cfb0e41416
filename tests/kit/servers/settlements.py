"""How questions are settled in a room, and what clients hear of it."""

from __future__ import annotations

from typing import Any, Final

from kit.servers.local_server import LocalServer
from parley.runtime.conversation import Conversation

__all__ = ["NO", "SETTLED", "YES", "settlements", "taken_back"]

NO: Final = {"decision": "denied"}
YES: Final = {"decision": "approved"}

SETTLED: Final = ["question_asked", "question_settled", "approval_settled"]
"""The entries of one question."""


def settlements(room: LocalServer, conversation: Conversation) -> list[str]:
    """The entries of a log that tell of questions and of the end of turns."""
    told = (*SETTLED, "turn_ended")
    return [entry for entry in room.happened(conversation.id) if entry in told]


def taken_back(request_id: int, decision: str) -> dict[str, Any]:
    """What a client is told of a question that it need not answer any more."""
    return {"requestId": request_id, "reason": f"Question is settled: {decision}"}
