"""The settlements of approvals on a `LocalServer`, and the messages that clients get."""

from __future__ import annotations

from typing import Any, Final

from kit.servers.local_server import LocalServer
from parley.runtime.conversation import Conversation

__all__ = ["NO", "SETTLED", "YES", "settlements", "taken_back"]

NO: Final = {"decision": "denied"}
YES: Final = {"decision": "approved"}

SETTLED: Final = ["question_asked", "question_settled", "approval_settled"]
"""The types of the entries of one approval."""


def settlements(server: LocalServer, conversation: Conversation) -> list[str]:
    """Return the entries of a log about approvals and the ends of turns."""
    types = (*SETTLED, "turn_ended")
    return [entry for entry in server.entry_types(conversation.id) if entry in types]


def taken_back(request_id: int, decision: str, *, by: str | None = None) -> dict[str, Any]:
    """Build the cancellation of an approval request that no longer needs an answer.

    `by` is the way in which a local client settled the approval; None for clients of older versions, whose
    cancellations do not contain it.
    """
    who = "" if by is None else f" by local ({by})"
    return {"requestId": request_id, "reason": f"Question is settled: {decision}{who}"}
