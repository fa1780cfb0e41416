"""Conversations of very many events, written to a store in bulk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from kit.builders.entries import FIRST
from kit.builders.events import (
    agent_message,
    exec_command_begin,
    exec_command_end,
    task_complete,
    task_started,
    user_message,
)
from kit.builders.logs import AT
from kit.builders.records import (
    history_compacted,
    message,
    model_asked,
    model_said,
    settings_chosen,
    turn_ended,
    turn_started,
)
from parley.conversation.log import Entry, Log, LogPayload
from parley.ports.store import PAGE, Store
from parley.runtime.bulk_create import bulk_create
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import ConversationId, Seq

__all__ = ["create_long", "long_pages", "write_long"]

EVENTS_PER_TURN = 100
TURNS_PER_SUMMARY = 20


async def write_long(home: Path, events: int, *, cwd: str = "/") -> int:
    """Create the conversation `FIRST` with at least this many events in a home; return its last position."""
    store = SqliteStore(str(home))
    try:
        return await create_long(store, events, cwd=cwd)
    finally:
        await store.close()


async def create_long(store: Store, events: int, *, cwd: str = "/", conversation_id: ConversationId = FIRST) -> int:
    """Create a conversation with at least this many events; return its last position."""
    last = 0

    async def pages() -> AsyncIterator[Sequence[Entry]]:
        nonlocal last
        async for page in long_pages(events, cwd=cwd):
            last = page[-1].seq
            yield page

    await bulk_create(store, conversation_id, pages())
    return last


async def long_pages(events: int, *, cwd: str = "/") -> AsyncIterator[Sequence[Entry]]:
    """Yield the entries of a conversation with at least this many events, by page."""
    turns, page, last = -(-events // EVENTS_PER_TURN), list[Entry](), 0
    first = Log()
    first.append([settings_chosen(cwd=cwd)], at=AT)
    page += first.entries
    said = _encoded(_middle_of_turn())
    for number in range(1, turns + 1):
        log = Log()
        log.append(_begin_of_turn(number), at=AT)
        for entry in (*log.entries, *said):
            page.append(replace(entry, seq=Seq(last + len(page) + 1)))
        if len(page) > PAGE - 2 * EVENTS_PER_TURN:
            last = page[-1].seq
            yield page
            page = []
    if page:
        yield page


def _encoded(payloads: Sequence[LogPayload]) -> Sequence[Entry]:
    log = Log()
    log.append(payloads, at=AT)
    return log.entries


def _begin_of_turn(number: int) -> list[LogPayload]:
    begun: list[LogPayload] = [
        turn_started(str(number)),
        task_started(),
        user_message(f"Question {number}", message_id=f"m{number}"),
    ]
    if number % TURNS_PER_SUMMARY:
        return begun
    # Everything before this turn: two items for each turn, and the summary before.
    replaced = 2 * (number - 1) if number == TURNS_PER_SUMMARY else 2 * TURNS_PER_SUMMARY + 1
    return [*begun, history_compacted("The story so far.", replaced=replaced)]


def _middle_of_turn() -> list[LogPayload]:
    """Return one hundred events, including the events that begin a turn."""
    steps: list[LogPayload] = [model_asked(), model_said(message("An answer"))]
    for step in range((EVENTS_PER_TURN - 4) // 2):
        steps += [exec_command_begin(f"c{step}", "make"), exec_command_end(f"c{step}", "made " * 20)]
    return [*steps, agent_message("An answer"), task_complete("An answer"), turn_ended()]
