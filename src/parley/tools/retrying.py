"""Once more without the sandbox: what is said, and who is asked, when something failed within its bounds."""

from __future__ import annotations

from parley.ports.tools import Action, Desk, Granted, Verdict
from parley.wire.events import BackgroundEvent

__all__ = ["may_retry"]


async def may_retry(desk: Desk, action: Action, *, why: str) -> Verdict:
    """Say why it failed, ask whether it may be done again, and say so when it may.

    The action has `has_failed` set.
    """
    await desk.transcript.append(BackgroundEvent(message=f"Execution failed: {why}"))
    verdict = await desk.permit(action)
    if isinstance(verdict, Granted):
        await desk.transcript.append(BackgroundEvent(message="retrying command without sandbox"))
    return verdict
