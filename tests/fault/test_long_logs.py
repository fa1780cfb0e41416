"""The cost of restoring a conversation from its checkpoint does not depend on the length of its log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kit.builders.entries import FIRST, summary
from kit.builders.events import agent_message, task_complete, task_started, user_message
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
from parley.conversation.projections import Projections
from parley.ports.store import CHECKPOINT_BYTES, PAGE, Checkpoint
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import Seq

TAIL: Final = 500
"""At least so many entries come after the checkpoint."""

TURNS_A_SUMMARY: Final = 100


class Restored(NamedTuple):
    """A restored conversation, and the time and memory that it took."""

    projections: Projections
    log: Log
    entries_read: int
    cpu_seconds: float


def turn(number: int, projections: Projections) -> list[LogPayload]:
    said = f"Answer {number}: {'word ' * 40}"
    compacted: list[LogPayload] = []
    if number % TURNS_A_SUMMARY == 0:
        compacted = [history_compacted("The story so far.", replaced=projections.history.cuts[-1])]
    return [
        turn_started(str(number)),
        task_started(),
        user_message(f"Question {number}", message_id=f"m{number}"),
        *compacted,
        model_asked(),
        model_said(message(said)),
        agent_message(said),
        task_complete(said),
        turn_ended(),
    ]


async def write_log(home: Path, length: int) -> Projections:
    """Write a log with a checkpoint near its end, and return its projections."""
    store, projections = SqliteStore(str(home)), Projections()
    draft = await store.draft()
    log, checkpoint, number = Log(), None, 0

    async def flush() -> None:
        while entries := log.entries[:PAGE]:
            await draft.add(entries)
            log.durable = entries[-1].seq
            log.trim(log.durable)

    def append(payloads: list[LogPayload]) -> None:
        log.append(payloads, at=AT)
        for one in payloads:
            projections.apply(one, at=AT)

    append([settings_chosen()])
    while log.last < length:
        number += 1
        append(turn(number, projections))
        if checkpoint is None and log.last >= length - TAIL and (data := projections.checkpoint()) is not None:
            checkpoint = Checkpoint(seq=log.last, data=data)
        if len(log.entries) >= PAGE:
            await flush()
            projections.history.drop_texts()
    await flush()
    await draft.finish(FIRST, summary())
    assert checkpoint is not None
    assert len(checkpoint.data) <= CHECKPOINT_BYTES
    await store.save_checkpoint(await store.acquire(FIRST, address=""), checkpoint)
    await store.close()
    return projections


async def restore(store: SqliteStore) -> Restored:
    await store.head(FIRST)  # opens the database
    before = time.process_time()
    checkpoint = await store.checkpoint(FIRST)
    assert checkpoint is not None
    projections, log, read = Projections.restored(checkpoint.data), Log(checkpoint.seq), 0
    while page := await store.read(FIRST, after=log.last):
        log.append_entries(page)
        projections.replay(page)
        read += len(page)
    log.durable = log.last
    missing = projections.history.missing
    while missing:
        page = await store.read(FIRST, after=Seq(missing[0] - 1))
        read += len(page)
        for entry in page:
            projections.supply(entry)
        missing = projections.history.missing
    return Restored(projections, log, read, time.process_time() - before)


async def check(home: Path, length: int) -> None:
    written = await write_log(home, length)
    store = SqliteStore(str(home))
    restored = await restore(store)
    found = await store.position_of(FIRST, "user_message", "m1")
    first: list[Entry] = await store.read(FIRST, after=Seq(0), limit=100)
    last = await store.read_before(FIRST, before=Seq(restored.log.last + 1), limit=100)
    await store.close()

    assert restored.projections.position == restored.log.last == written.position >= length
    assert len(restored.projections.history.items) == len(written.history.positions().steps)
    assert restored.projections.state.next_event_id() == written.state.next_event_id()
    assert restored.entries_read <= TAIL + 2 * PAGE
    assert restored.cpu_seconds < 0.5
    assert (found, len(first), len(last)) == (4, 100, 100)


async def test_50_000_entries_are_restored_by_reading_few_of_them(tmp_path: Path) -> None:
    await check(tmp_path, 50_000)


@pytest.mark.long
async def test_1_000_000_entries_are_restored_by_reading_few_of_them(tmp_path: Path) -> None:
    await check(tmp_path, 1_000_000)
