"""The entries that end a turn, for every reason.

Pure: the caller appends them. A turn that ends by itself, one that is interrupted, and one that a later process
finds unfinished all end with the entries made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from parley.conversation.history import ABORTED, History
from parley.conversation.log import LogPayload
from parley.conversation.records import CallOutput, CommandOutput, TurnEnded
from parley.conversation.usage import UsageTotals
from parley.wire.events import ErrorEvent, TaskComplete, TurnEndReason

__all__ = ["INTERRUPTED", "KILLED", "LOST", "Interruption", "limit_message", "turn_end"]

Interruption = Literal["interrupted", "stopped", "restarted"]
"""The reasons of a turn that did not end by itself."""
INTERRUPTED: Final[dict[Interruption, str]] = {
    "interrupted": " Turn interrupted",  # clients match on it, the leading blank included
    "stopped": "Turn interrupted: the server was stopped",
    "restarted": "Turn interrupted: the server was restarted",
}
"""The message of a turn that did not end by itself, by its reason."""
KILLED: Final = "Turn interrupted: the server that ran it was killed"
"""The message if the turn ran in another server that was killed."""
LOST: Final = "The server stopped while this ran; it may have taken effect."
"""Output, for the model, of a call that ended with its server."""


def limit_message(limit: str) -> str:
    """Return the message of a turn that was stopped at a limit."""
    return f"Limit reached: {limit}"


def turn_end(
    why: TurnEndReason,
    message: str | None = None,
    *,
    history: History,
    usage: UsageTotals,
    outputs: Iterable[CommandOutput] = (),
    last_message: str | None = None,
    code: str | UnsetType = UNSET,
) -> tuple[LogPayload, ...]:
    """Return the last entries of a turn.

    `message` says why the turn was not completed; the default is the sentence for an interruption. `outputs` are
    the outputs of commands that were still running. `last_message` is the last text of a completed turn. `code` is
    the error code of a failed turn.
    """
    if why != "done" and why != "failed":
        message = message or INTERRUPTED[why]
    output = LOST if why in ("stopped", "restarted") else ABORTED
    return (
        *outputs,
        *(CallOutput(call_id=call, output=output) for call in history.unanswered),
        *(() if usage.unreported is None else (usage.unreported,)),
        *(() if message is None else (ErrorEvent(message=message, reason=why, code=code),)),
        *((TaskComplete(last_agent_message=last_message),) if why in ("done", "failed") else ()),
        TurnEnded(why=why, message=message, code=code),
    )
