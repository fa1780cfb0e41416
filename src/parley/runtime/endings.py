"""How a turn ends that did not come to an end by itself: what clients read of it, and what the log says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from parley.conversation.history import ABORTED
from parley.conversation.log import Happened
from parley.conversation.records import CallOutput, CommandOutput, TurnEnded, Why
from parley.runtime.book import Book
from parley.wire.events import ErrorEvent, TaskComplete, TokenCount

__all__ = ["ENDINGS", "KILLED", "end_of_cut", "end_of_failed"]

ENDINGS: Final[dict[Why, str]] = {
    "interrupted": " Turn interrupted",  # clients match on it, the leading blank included
    "stopped": "Turn interrupted: the server was stopped",
    "restarted": "Turn interrupted: the server was restarted",
}
"""What is said of a turn that was cut short."""
KILLED: Final = "Turn interrupted: the server that ran it was killed"
"""What is said where another server ran the turn, and this one did not restart."""
LOST: Final = "The server stopped while this ran; it may have taken effect."
"""What the model is told of a call that ended with its server."""


def end_of_cut(book: Book, why: Why, message: str | None = None) -> tuple[Happened, ...]:
    """The last entries of a turn that was cut short; `message` in place of what is usually said."""
    message = message or ENDINGS[why]
    left = _left_open(book, ABORTED if why == "interrupted" else LOST)
    return (*left, ErrorEvent(message=message), TurnEnded(why=why, message=message))


def end_of_failed(book: Book, message: str) -> tuple[Happened, ...]:
    """The last entries of a turn that could not go on."""
    return (
        *_left_open(book, ABORTED),
        ErrorEvent(message=message),
        TaskComplete(last_agent_message=None),
        TurnEnded(why="failed", message=message),
    )


def _left_open(book: Book, output: str) -> Iterator[CommandOutput | CallOutput | TokenCount]:
    """What a turn that was cut short leaves to be said: what its command said, that calls did not end, and what the
    response cost that they are of."""
    yield from book.log.kept_outputs()
    for call_id in book.history.unanswered:
        yield CallOutput(call_id=call_id, output=output)
    if book.spending.untold is not None:
        yield book.spending.untold
