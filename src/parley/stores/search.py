"""Functions that all stores share for searching messages and for ordering conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from parley.ports.store import ConversationListing, Summary, UnreadEnd
from parley.wire.events import AgentMessage, UserMessage, event_type
from parley.wire.ids import ApprovalId

__all__ = [
    "SEARCHED",
    "Match",
    "active_at",
    "approval_id_in",
    "contains_text",
    "match_in",
    "normalize_path",
    "unread_end",
    "words_of",
]

SEARCHED: Final = (event_type(UserMessage), event_type(AgentMessage))
"""The types of the events that a search examines: messages from the user and from the agent."""

BEFORE_MATCH: Final = 60
"""The maximum number of characters that a snippet shows before a match."""
AFTER_MATCH: Final = 140
"""The maximum number of characters that a snippet shows after a match."""
BLOCK: Final = 4096
"""The number of characters that are casefolded at a time when the position of a match in the original text is
determined.
"""

SLACK_SECONDS: Final = 1.0
"""The number of seconds by which the clock may be earlier than the newest recorded activity. If the difference is
larger, the clock counts as set back. The limit is not 0, because two processes may write in a different order from
the order in which they read the clock.
"""

STEP_SECONDS: Final = 0.001
"""The number of seconds by which the recorded time of a new activity is later than the newest recorded time, if the
clock counts as set back.
"""


class _Message(Struct):
    """A message from the user or the agent. Only the text is decoded."""

    class Item(Struct):
        text: str = ""

    message: str = ""
    content: tuple[Item, ...] = ()


class Match(NamedTuple):
    """The first occurrence of the searched text in a message."""

    snippet: str
    """The occurrence on one line, with up to `BEFORE_MATCH` characters before it and `AFTER_MATCH` characters after
    it.
    """
    start: int
    """The index in `snippet` at which the occurrence begins."""
    end: int
    """The index in `snippet` directly after the last character of the occurrence."""


class _ApprovalRecord(Struct):
    """An approval record. Only the id of the approval is decoded."""

    approval_id: ApprovalId


_messages: Final = msgspec.json.Decoder(_Message)
_approvals: Final = msgspec.json.Decoder(_ApprovalRecord)


def contains_text(text: str, body: bytes) -> bool:
    """Return whether a message contains `text`, ignoring case. `text` must be casefolded. `body` is the encoded
    message, an event of a type in `SEARCHED`.
    """
    return any(text in words.casefold() for words in words_of(body))


def match_in(text: str, body: bytes) -> Match | None:
    """Return the first occurrence of `text` in a message, ignoring case; None if there is none. `text` must be
    casefolded. `body` is the encoded message, an event of a type in `SEARCHED`.
    """
    for words in words_of(body):
        folded = words.casefold()
        begin = folded.find(text)
        if begin >= 0:
            last = begin + len(text) - 1
            if len(folded) != len(words):  # casefolding may turn one character into several
                begin, last = _letter_at(words, begin), _letter_at(words, last)
            first = max(0, begin - BEFORE_MATCH)
            shown = words[first : last + 1 + AFTER_MATCH]
            return Match(_on_one_line(shown), begin - first, last + 1 - first)
    return None


def words_of(body: bytes) -> Iterator[str]:
    """Yield the text of a message and the text of each of its items. `body` is the encoded message, an event of a
    type in `SEARCHED`. Yield nothing if the message cannot be decoded.
    """
    try:
        event = _messages.decode(body)
    except ValueError:
        return  # the event is damaged, or a newer version of Parley wrote it
    yield event.message
    yield from (item.text for item in event.content)


def _letter_at(words: str, offset: int) -> int:
    """Return the index of the character in `words` whose casefolded form contains the character at the index
    `offset` of the casefolded `words`. The two indices can differ, because casefolding may replace one character
    with several.
    """
    passed = index = 0
    for index in range(0, len(words), BLOCK):
        length = len(words[index : index + BLOCK].casefold())
        if passed + length > offset:
            break
        passed += length
    while (passed := passed + len(words[index].casefold())) <= offset:
        index += 1
    return index


def _on_one_line(text: str) -> str:
    """Return `text` with each control character replaced with a space. The length stays the same, so all offsets
    stay valid.
    """
    return "".join(one if one >= " " and not "\x7f" <= one <= "\x9f" else " " for one in text)


def approval_id_in(body: bytes) -> ApprovalId | None:
    """Return the id of the approval in an encoded approval record; None if the record is damaged."""
    try:
        return _approvals.decode(body).approval_id
    except ValueError:
        return None


def normalize_path(path: str) -> str:
    """Return `path` without redundant slashes and components `.`. Components `..` are kept, because their meaning
    depends on symbolic links.
    """
    parts = "/".join(part for part in path.split("/") if part not in ("", "."))
    return f"/{parts}" if path.startswith("/") else parts


def active_at(summary: Summary, newest: object) -> float:
    """Return the time to record for a conversation's last activity, in seconds since the epoch. `summary` is the
    new summary of the conversation. `newest` is the latest time that is recorded for any conversation; None if no
    time is recorded.

    If the conversation is active now and the clock was set back, the returned time is after `newest`, so that the
    conversation is listed first.
    """
    at = summary.updated_at
    if not summary.is_active or not isinstance(newest, float) or at >= newest - SLACK_SECONDS:
        return at
    return newest + STEP_SECONDS


def unread_end(listed: ConversationListing) -> UnreadEnd | None:
    """If the conversation is idle and unread, return how its last turn ended; otherwise return None."""
    outcome = listed.summary.outcome
    if outcome is None or not listed.unread or listed.summary.state != "idle":
        return None
    return "failed" if outcome.has_failed else "finished"
