"""Readers and projections do not depend on which entries are in memory.

For any beginning of the tail and any checkpoint, they have the same results as with the whole log in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kit.builders.approvals import approval_settlement, command_approval
from kit.builders.events import agent_message, task_complete, task_started, user_message
from kit.builders.logs import contents_of
from kit.builders.records import (
    call,
    call_output,
    command_output,
    history_compacted,
    message,
    model_asked,
    model_said,
    renamed,
    settings_chosen,
    turn_ended,
    turn_started,
)
from kit.servers.local_server import StandingClock
from kit.servers.slow_store import SlowStore
from parley.conversation.log import Cursor, Delta, Entry, LogPayload
from parley.conversation.output import OutputDelta
from parley.conversation.projections import Projections
from parley.runtime.checkpoints import Checkpoints
from parley.runtime.durable_log import DurableLog
from parley.runtime.readers import Reader
from parley.wire.ids import ConversationId, MessageId, Seq

CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")
ROOT = MessageId(CONVERSATION)

turns = st.tuples(st.just("turn"), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 20)), st.booleans())
"""Generates turns with a number of calls, possibly with a branch or a summary."""
others = st.tuples(st.sampled_from(["rename", "refused", "restart", "read"]), st.integers(0, 40))
scripts = st.lists(st.one_of(turns, turns, others), min_size=1, max_size=14)


class Slow:
    """A client that receives a few frames at a time, and records the positions of the events."""

    hidden: frozenset[str] = frozenset()
    sends_records = True

    def __init__(self, log: DurableLog, after: Seq) -> None:
        self.after, self.seen = after, list[Seq]()
        self._room, self._waiting = 0, list[Callable[[], None]]()
        cursor = Cursor.of_records(after)
        self.reader = Reader(log.log, cursor, self, self, earlier=log.read_after)
        log.readers.attach(self.reader)

    @property
    def writable(self) -> bool:
        return self._room > 0

    def entry(self, entry: Entry, send: Callable[[bytes], None]) -> None:
        self.seen.append(entry.seq)
        send(b"")

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Callable[[bytes], None]) -> None:
        send(encoded)

    def send(self, frame: bytes) -> None:
        self._room -= 1

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._waiting.append(wake)

    async def read(self, frames: int) -> None:
        self._room = frames
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()
        self.reader.pump()
        for _ in range(20):
            await asyncio.sleep(0)


class World:
    """One log with a small tail, and a store with the complete log."""

    def __init__(self, every: int, tail: int) -> None:
        self.store, self._every, self._tail = SlowStore(), every, tail
        self.log = self._open()
        self.clients: list[Slow] = []
        self._turns = 0

    def _open(self) -> DurableLog:
        checkpoints = Checkpoints(CONVERSATION, self.store, every=self._every, tail=self._tail)
        return DurableLog(CONVERSATION, self.store, StandingClock(), checkpoints=checkpoints)

    async def begin(self) -> None:
        await self.log.create(settings_chosen())
        await self.log.acquire(address="")

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("turn", calls, parent, summary):
                await self._run_turn(calls, parent, summary=summary)
            case ("rename", number):
                await self.log.append(renamed(f"Title {number}"))
            case ("refused", _):
                self.store.slow = True
                refused = self.log.write(*self._begin_of_turn(None))
                await self.store.fail()
                self.store.slow = False
                assert refused.exception() is not None
            case ("restart", _):
                await self.log.release()
                self.log, self.clients = self._open(), []
                await self.log.load()
                await self.log.acquire(address="")
            case ("read", position):
                self.clients.append(Slow(self.log, Seq(min(position, self.log.log.durable))))
            case _:
                raise AssertionError(step)
        for client in self.clients:
            await client.read(3)

    def _begin_of_turn(self, parent: int | None) -> list[LogPayload]:
        self._turns += 1
        number, named = self._turns, None
        if parent is not None and self._turns > 1:
            named = [CONVERSATION, *(f"m{one}" for one in range(1, number))][parent % number]
        return [
            turn_started(str(number)),
            task_started(),
            user_message(f"Question {number}", message_id=f"m{number}", parent=named),
        ]

    async def _run_turn(self, calls: int, parent: int | None, *, summary: bool) -> None:
        begun = self._begin_of_turn(parent)
        named = begun[-1].parent_message_id  # type: ignore[union-attr]  # it is a message
        if isinstance(named, str):
            if await self.log.position_of("user_message", named) is None and named != CONVERSATION:
                self._turns -= 1  # the parent does not exist: its append was refused
                return
            if not self.log.projections.knows(MessageId(named)):
                await self.log.fold_whole()
        await self.log.append(*begun)
        if summary and (cuts := self.log.history.cuts):
            await self.log.append(history_compacted("So far", replaced=cuts[-1]))
        await self.log.append(model_asked())
        for number in range(calls):
            name = f"{self._turns}.{number}"
            asked = 100 * self._turns + number
            await self.log.append(model_said(call(name)))
            await self.log.append(*command_approval(asked, "make"))
            await self.log.append(approval_settlement(asked, "approved"))
            await self.log.append(command_output(name, b"made"), call_output(name, "made"))
        await self.log.append(model_said(message("Answer")), agent_message("Answer"))
        await self.log.append(task_complete("Answer"), turn_ended())

    async def check(self) -> None:
        whole, entries = Projections(ROOT), list[Entry]()
        while page := await self.store.read(CONVERSATION, after=Seq(len(entries))):
            entries += page
        whole.replay(entries)
        await self.log.hold_texts()
        assert contents_of(self.log.projections) == contents_of(whole)
        self.log.release_texts()
        for client in self.clients:
            await client.read(1_000_000)
            assert client.seen == list(range(client.after + 1, len(entries) + 1))
        for after in range(0, len(entries), 7):
            seen, at = list[Entry](), Seq(after)
            while page := [*await self.log.read_after(at, limit=3)]:
                seen += page
                at = page[-1].seq
            assert seen == entries[after:]


@given(script=scripts, every=st.integers(1, 12), tail=st.integers(0, 12))
def test_a_tail_shows_what_the_whole_log_shows(script: list[tuple[Any, ...]], every: int, tail: int) -> None:
    async def run() -> None:
        world = World(every, tail)
        await world.begin()
        for step in script:
            await world.do(step)
        await world.check()

    asyncio.run(run())
