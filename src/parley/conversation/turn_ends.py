"""Creates the last entries of a turn that was completed, failed, was interrupted, or was left unfinished by a
process that has exited.

The caller appends the entries to the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from parley.conversation.history import ABORTED
from parley.conversation.log import LogPayload
from parley.conversation.records import CallOutput, CommandOutput, TurnEnded
from parley.wire.events import ErrorEvent, QueueChanged, TaskComplete, TokenCount, TurnEndReason
from parley.wire.ids import CallId, MessageId
from parley.wire.principals import PrincipalRef, name_of

__all__ = [
    "CUT_OFF",
    "INTERRUPTED",
    "KILLED",
    "KILLED_OR_CUT_OFF",
    "LOST",
    "Interruption",
    "limit_message",
    "turn_end",
]

Interruption = Literal["interrupted", "stopped", "restarted"]
"""The reasons for the end of a turn that neither completed nor failed: `interrupted` by an interrupt, `stopped` by
a shutdown of the server, or `restarted` if the turn was orphaned and then ended by its recovery.
"""
INTERRUPTED: Final[dict[Interruption, str]] = {
    "interrupted": " Turn interrupted",  # clients compare this text, including the leading blank
    "stopped": "Turn interrupted: the server was stopped",
    "restarted": "Turn interrupted: the server was restarted",
}
"""The messages that clients get for interrupted turns, by the reason for the end of the turn."""
KILLED: Final = "Turn interrupted: the server that ran it was killed"
"""The message of a turn that ended because its server was killed. The process that recovers the turn appends this
message.
"""
CUT_OFF: Final = "Turn interrupted: the server lost its connection to the database"
"""The message of a turn that a server has ended because the server could not reach the database."""
KILLED_OR_CUT_OFF: Final = (
    "Turn interrupted: the server that ran it was killed or lost its connection to the database"
)
"""The message of a turn that another process recovers from a shared database. The recovering process cannot
determine whether the server of the turn was killed or lost its connection to the database.
"""
LOST: Final = "The server stopped while this ran; it may have taken effect."
"""The output that the model gets for a tool call that was running when its server stopped."""


def limit_message(limit: str) -> str:
    """Return the message for a turn that ended because it reached the limit with the name `limit`."""
    return f"Limit reached: {limit}"


def turn_end(
    why: TurnEndReason,
    message: str | None = None,
    *,
    unanswered: Iterable[CallId] = (),
    unreported: TokenCount | None = None,
    queued: Collection[MessageId] = (),
    outputs: Iterable[CommandOutput] = (),
    last_message: str | None = None,
    code: str | UnsetType = UNSET,
    principal: PrincipalRef | None = None,
) -> tuple[LogPayload, ...]:
    """Return the last entries of a turn that ended for the reason `why`.

    `message` explains why the turn was not completed; None for a completed turn. The default for an interrupted
    turn is the text in `INTERRUPTED`. `unanswered` contains the ids of the tool calls without an output.
    `unreported` is the token usage that clients have not received yet. `queued` contains the ids of the messages in
    the queue. `outputs` contains the output records of commands that were still running. `last_message` is the last
    text of a completed turn. `code` is the error code of a failed turn. `principal` is the principal that
    interrupted the turn; None if no principal interrupted it. If the turn was not completed and the queue has
    messages, the entries contain the event that reports the pause of the queue.
    """
    if why != "done" and why != "failed":
        message = message or INTERRUPTED[why]
    output = LOST if why in ("stopped", "restarted") else ABORTED
    return (
        *outputs,
        *(CallOutput(call_id=call, output=output) for call in unanswered),
        *(() if unreported is None else (unreported,)),
        *((QueueChanged(messages=tuple(queued), paused=True),) if why != "done" and queued else ()),
        *(
            ()
            if message is None
            else (ErrorEvent(message=message, reason=why, code=code, principal=name_of(principal)),)
        ),
        *((TaskComplete(last_agent_message=last_message),) if why in ("done", "failed") else ()),
        TurnEnded(why=why, message=message, code=code, principal=principal),
    )
