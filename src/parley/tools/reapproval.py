"""Asking a second time: because something failed within its bounds, or is not what was approved any more."""

from __future__ import annotations

from typing import Final

from parley.conversation.records import Changed
from parley.ports.tools import Action, Desk, Granted, Refused, Verdict
from parley.wire.events import BackgroundEvent

__all__ = ["MOST_APPROVALS", "REPLACED_EACH_TIME", "ask_to_escalate", "report_changed"]

MOST_APPROVALS: Final = 3
"""How often one call is approved, where each time something is replaced before it begins."""

REPLACED_EACH_TIME: Final = Refused(
    why=f"what was approved was replaced before it could begin, {MOST_APPROVALS} times in a row"
)

_CHANGED: Final[dict[Changed, str]] = {
    "directory": "the working directory",
    "program": "the program",
    "files": "a file or directory of the patch",
    "unknown": "something",
}


async def ask_to_escalate(desk: Desk, action: Action, *, why: str) -> Verdict:
    """Say why it failed, ask whether it may be done again, and say so when it may.

    The action has `has_failed` set.
    """
    await desk.transcript.append(BackgroundEvent(message=f"Execution failed: {why}"))
    verdict = await desk.permit(action)
    if isinstance(verdict, Granted):
        await desk.transcript.append(BackgroundEvent(message="retrying command without sandbox"))
    return verdict


async def report_changed(desk: Desk, changed: Changed) -> None:
    """Say why the same call is asked about again."""
    message = f"Not started: {_CHANGED[changed]} is not what was approved any more"
    await desk.transcript.append(BackgroundEvent(message=message))
