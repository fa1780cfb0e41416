"""Reads a long log in pages, to fork a conversation, to find the end of a turn, or to read entries backwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from parley.conversation.errors import UnknownMessage
from parley.conversation.log import Entry, visible
from parley.conversation.log_queries import (
    EndedTurn,
    for_copy,
    is_title,
    is_turn_end,
    last_workspace,
    turn_end_in,
)
from parley.ports.store import PAGE
from parley.runtime.errors import TurnIsRunning
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import START, MessageId, Seq

__all__ = ["LogPages", "entries_of_fork", "last_turn_end", "last_workspace_before", "scan_back"]


class LogPages(Protocol):
    """A log whose entries are read in pages, from memory or from the store. `Conversation` implements this
    protocol.
    """

    async def read_after(self, after: Seq) -> Sequence[Entry]: ...

    async def read_before(self, before: Seq, *, limit: int = PAGE) -> Sequence[Entry]: ...

    async def position_of_message(self, message_id: MessageId) -> Seq | None: ...


async def last_turn_end(log: LogPages, *, after: Seq, up_to: Seq) -> EndedTurn | None:
    """Return the last turn that ended after the position `after` and at or before the position `up_to`; None if no
    turn ended there.

    Raises:
        UnknownConversation: the conversation has been deleted.
        StoreError: the log cannot be read.
    """
    found: list[Entry] = []
    before = Seq(up_to + 1)
    end: EndedTurn | None = None
    # The text of the turn may be in an earlier page.
    while before > after + 1 and (end is None or end.text is None):
        page = [entry for entry in await log.read_before(before) if entry.seq > after]
        if not page:
            break
        found[:0] = page
        end = turn_end_in(found)
        before = page[0].seq
    return end


async def last_workspace_before(log: LogPages, before: Seq) -> WorkspaceUpdated | None:
    """Return the last event `workspace_updated` before the position `before`; None if there is no such event.

    Raises:
        UnknownConversation: the conversation has been deleted.
        StoreError: the log cannot be read.
    """
    while page := await log.read_before(before):
        if (found := last_workspace(page)) is not None:
            return found
        before = page[0].seq
    return None


async def scan_back(
    log: LogPages,
    before: Seq,
    take: Callable[[Entry], bool],
    *,
    page: int = PAGE,
    hidden: frozenset[str] = frozenset(),
) -> bool:
    """Call `take` with each entry that clients see, one at a time, from the newest entry before the position
    `before` to the oldest entry. Stop when `take` returns False.

    Return whether `take` returned False. Events whose type is in `hidden` are skipped. The log is read in pages of
    at most `page` entries.

    Raises:
        UnknownConversation: the conversation has been deleted.
        StoreError: the log cannot be read.
    """
    while entries := await log.read_before(before, limit=page):
        if not all(map(take, visible(reversed(entries), hidden))):
            return True
        before = entries[0].seq
    return False


async def entries_of_fork(
    log: LogPages, at: MessageId | None, *, last: Seq, is_idle: bool
) -> AsyncIterator[Sequence[Entry]]:
    """Yield pages of the entries that a fork copies.

    These are the entries up to the end of the turn that handled the message `at`. If `at` is None, these are all
    entries up to the position `last`. If the title was set after the end of the turn, the record of the title is
    also included, because a title belongs to the whole conversation. Session grants and the queue are not included.
    `is_idle` is True if the last turn of the conversation has ended.

    Raises:
        UnknownMessage: no message has the id `at`.
        TurnIsRunning: the turn of the message `at` has not ended. If `at` is None, the last turn has not ended.
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
        yield [for_copy(entry) for entry in page]
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
