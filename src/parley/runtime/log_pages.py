"""Reads a long log page by page: the entries of a fork, and the end of a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec.structs import replace

from parley.conversation.errors import UnknownMessage
from parley.conversation.log import Entry
from parley.conversation.log_queries import TurnOutcome, is_title, is_turn_end, turn_end_in, without_grant
from parley.errors import TurnIsRunning
from parley.wire.ids import START, MessageId, Seq

__all__ = ["LogPages", "entries_of_fork", "last_turn_end"]


class LogPages(Protocol):
    """A log whose entries are read by page, from memory or from the store (`Conversation`)."""

    async def read_after(self, after: Seq) -> Sequence[Entry]: ...

    async def read_before(self, before: Seq) -> Sequence[Entry]: ...

    async def position_of_message(self, message_id: MessageId) -> Seq | None: ...


async def last_turn_end(log: LogPages, *, after: Seq, up_to: Seq) -> TurnOutcome | None:
    """Return the end of the last turn that ended between two positions; None if none did. Raises StoreError."""
    found: list[Entry] = []
    before = Seq(up_to + 1)
    end: TurnOutcome | None = None
    while before > after + 1 and (end is None or end.text is None):  # its text may be in the page before
        page = [entry for entry in await log.read_before(before) if entry.seq > after]
        if not page:
            break
        found[:0] = page
        end = turn_end_in(found)
        before = page[0].seq
    return end


async def entries_of_fork(
    log: LogPages, at: MessageId | None, *, last: Seq, is_idle: bool
) -> AsyncIterator[Sequence[Entry]]:
    """Yield the entries up to the end of the turn that handled the message `at`, by page; all entries up to `last`
    if `at` is None.

    A title that was set later is included, because it is the title of the whole conversation. Session grants are
    not included. `is_idle` says whether the last turn has ended.

    Raises:
        UnknownMessage: there is no such message.
        TurnIsRunning: that turn has not ended.
        StoreError: the log cannot be read.
    """
    end, title = last, None
    if at is not None:
        end = await _end_of_turn(log, at, last)
        title = await _last_title(log, after=end, last=last)
    elif not is_idle:
        raise TurnIsRunning
    position = START
    while position < end:
        page = (await log.read_after(position))[: end - position]
        yield [without_grant(entry) for entry in page]
        position = page[-1].seq
    if title is not None:
        yield [replace(title, seq=Seq(end + 1))]


async def _end_of_turn(log: LogPages, message_id: MessageId, last: Seq) -> Seq:
    position = await log.position_of_message(message_id)
    if position is None or position > last:
        raise UnknownMessage
    while page := await log.read_after(position):
        for entry in page:
            if is_turn_end(entry):
                return entry.seq
        position = page[-1].seq
    raise TurnIsRunning


async def _last_title(log: LogPages, *, after: Seq, last: Seq) -> Entry | None:
    before = Seq(last + 1)
    while before > after + 1 and (page := await log.read_before(before)):
        for entry in reversed(page):
            if entry.seq > after and is_title(entry):
                return entry
        before = page[0].seq
    return None
