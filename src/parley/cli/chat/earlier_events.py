"""Reads the earlier events of a conversation, newest first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, TypeVar

from parley.client import Conversation, ReadEvent, events
from parley.wire.items import TextItem, text_of

__all__ = ["TurnChanges", "events_backwards", "last_event", "turn_changes"]

E = TypeVar("E")

PAGE: Final = 500
END: Final = 2**53 - 1
"""A position that is greater than the position of every event."""

MAX_EVENTS: Final = 20_000
"""The maximum number of events that a command of the chat reads. The limit keeps commands fast in a very long
conversation.
"""


class TurnChanges(NamedTuple):
    """The changes that the patches of one turn have made, with the message that began the turn."""

    message: str
    """The first line of the message that began the turn."""
    diff: str


async def events_backwards(conversation: Conversation, *, limit: int = MAX_EVENTS) -> AsyncIterator[ReadEvent]:
    """Yield the events of a conversation, the last one first. Stop after about `limit` events."""
    before: int | None = END
    read = 0
    while before is not None and read < limit:
        page = await conversation.read(before=before, limit=PAGE)
        for event in reversed(page.events):
            yield event
        read += len(page.events)
        before = page.before


async def last_event(conversation: Conversation, kind: type[E]) -> E | None:
    """Return the last event of the type `kind`; None if none of the last `MAX_EVENTS` events has this type."""
    async for event in events_backwards(conversation):
        if isinstance(event.msg, kind):
            return event.msg
    return None


async def turn_changes(conversation: Conversation) -> list[TurnChanges]:
    """Return the changes of each turn in which patches have changed files, including the running turn, the oldest
    turn first.

    If the conversation has more than `MAX_EVENTS` events, the oldest turns are missing.
    """
    found: list[TurnChanges] = []
    diff, message = None, ""
    async for event in events_backwards(conversation):
        match event.msg:
            case events.TurnDiff(unified_diff=text) if diff is None:
                diff = text
            case events.UserMessage(content=content):
                message = _first_line(content)
            case events.TaskStarted():
                if diff:
                    found.append(TurnChanges(message, diff))
                diff, message = None, ""
            case _:
                pass
    if diff:  # the beginning of the turn was not read
        found.append(TurnChanges(message, diff))
    return found[::-1]


def _first_line(content: tuple[object, ...]) -> str:
    text = text_of(tuple(item for item in content if isinstance(item, TextItem))).strip()
    return text.splitlines()[0] if text else ""
