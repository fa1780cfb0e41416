"""A reader sends entries that the log has dropped from memory, and reads them from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kit.builders.entries import FIRST, answers, summary
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.log import Cursor, Delta, Entry, Log
from parley.conversation.output import OutputDelta
from parley.errors import StoreFailed
from parley.runtime.readers import Reader
from parley.stores.memory import MemoryStore
from parley.wire.ids import Seq


class _Outbox:
    """An outbox that accepts frames while it has room."""

    def __init__(self, server: int) -> None:
        self.server, self.frames = server, list[bytes]()
        self._wake: list[Callable[[], None]] = []

    @property
    def writable(self) -> bool:
        return len(self.frames) < self.server

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._wake.append(wake)

    def make_room(self, server: int) -> None:
        self.server, wake, self._wake = server, self._wake, []
        for one in wake:
            one()


class _Positions:
    """Encodes an entry as its position."""

    hidden: frozenset[str] = frozenset()
    sends_records = True

    def entry(self, entry: Entry, send: Callable[[bytes], None]) -> None:
        send(b"%d" % entry.seq)

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Callable[[bytes], None]) -> None:
        send(encoded)


def tail_of(entries: Sequence[Entry], base: int) -> Log:
    log = Log()
    log.append_entries(entries)
    log.durable = log.last
    log.trim(Seq(base))
    return log


async def test_a_reader_sends_pages_from_the_store_and_then_the_tail() -> None:
    store, out, asked = MemoryStore(), _Outbox(4), list[Seq]()
    await store.create(FIRST, answers(1, 10), summary())
    log, ended = tail_of(answers(1, 10), 7), asyncio.Event()

    async def earlier(after: Seq) -> list[Entry]:
        asked.append(after)
        return await store.read(FIRST, after=after, limit=3)

    def passed(entry: Entry) -> None:
        if entry.seq in (4, 10):
            ended.set()

    reader = Reader(log, Cursor(), out, _Positions(), passed=passed, earlier=earlier)
    reader.pump()
    reader.pump()  # one page is read at a time
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await ended.wait()
        sent = list(out.frames)
        ended.clear()
        out.make_room(99)
        await ended.wait()

    assert sent == [b"1", b"2", b"3", b"4"]
    assert out.frames == [b"%d" % seq for seq in range(1, 11)]
    assert (asked, reader.keeps_up) == ([0, 3, 6], True)


async def test_a_reader_that_cannot_read_the_store_is_dropped_rather_than_leave_a_gap() -> None:
    out, dropped = _Outbox(99), asyncio.Event()

    async def earlier(after: Seq) -> list[Entry]:
        raise StoreFailed("no disk")

    reader = Reader(
        tail_of(answers(1, 3), 2),
        Cursor(),
        out,
        _Positions(),
        on_dropped=lambda error: dropped.set(),
        earlier=earlier,
    )
    reader.pump()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await dropped.wait()
    reader.pump()

    assert out.frames == []
