"""Requests another approval for the same action: after a failure in the sandbox, or after an approved file or
directory was replaced.
"""

from __future__ import annotations

from typing import Final

from parley.conversation.records import Changed
from parley.ports.tools import Action, Granted, RejectedByPolicy, ToolContext, Verdict
from parley.wire.events import BackgroundEvent

__all__ = ["MAX_APPROVALS", "REPLACED_EACH_TIME", "ask_to_escalate", "report_changed"]

MAX_APPROVALS: Final = 3
"""The maximum number of approvals that one tool call requests if its program, directory or files are replaced after
each approval. After the last of these approvals, the tool call fails.
"""

REPLACED_EACH_TIME: Final = RejectedByPolicy(
    why=f"its program, directory or files were replaced after each of {MAX_APPROVALS} approvals"
)

_CHANGED: Final[dict[Changed, str]] = {
    "directory": "the working directory",
    "program": "the program",
    "files": "a file or directory of the patch",
    "unknown": "something",
}


async def ask_to_escalate(context: ToolContext, action: Action, *, why: str) -> Verdict:
    """Request an approval to repeat an action without the sandbox, and return the verdict. Before the request,
    append an event that tells clients why the action failed in the sandbox (`why`). If the verdict is `Granted`,
    append an event that tells clients that the action is repeated.

    `action.has_failed` must be True.
    """
    await context.transcript.append(BackgroundEvent(message=f"Execution failed: {why}"))
    verdict = await context.authorize(action)
    if isinstance(verdict, Granted):
        await context.transcript.append(BackgroundEvent(message="retrying command without sandbox"))
    return verdict


async def report_changed(context: ToolContext, changed: Changed) -> None:
    """Append an event that tells clients what was replaced after an approval (`changed`). The tool call then needs
    a new approval.
    """
    message = f"Not started: {_CHANGED[changed]} was replaced after the approval"
    await context.transcript.append(BackgroundEvent(message=message))
