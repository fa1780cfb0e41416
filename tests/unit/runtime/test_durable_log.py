"""Writes to a slow store: readers get durable entries in order, and a failed write has no effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kit.builders.events import agent_message, exec_command_begin, exec_command_end, task_started, user_message
from kit.builders.records import renamed, settings_chosen, turn_ended, turn_started
from kit.servers.local_server import StandingClock
from kit.servers.slow_store import DISK_FULL, SlowStore
from parley.conversation.log import Cursor, Delta, Entry, ItemKind
from parley.conversation.output import OutputDelta
from parley.conversation.state import Phase
from parley.errors import LeaseLost, OwnedElsewhere, StoreFailed, UnknownConversation
from parley.ports.store import PAGE
from parley.runtime.durable_log import DurableLog
from parley.runtime.readers import Reader
from parley.wire.ids import CallId, ConversationId, Seq

CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")
BEGUN = (turn_started(), task_started(), user_message("go"))


def new_durable_log(store: SlowStore) -> DurableLog:
    return DurableLog(CONVERSATION, store, StandingClock())


async def log_with_entries(store: SlowStore) -> DurableLog:
    """Return a log in the middle of a turn, whose store is slow from now on."""
    durable_log = new_durable_log(store)
    await durable_log.create(settings_chosen())
    await durable_log.acquire(address="")
    await durable_log.append(*BEGUN)
    store.slow = True
    return durable_log


class Client:
    """A client that accepts all messages and records them as types and as `item@offset:text`."""

    hidden: frozenset[str] = frozenset()
    sends_records = False
    writable = True

    def __init__(self, durable_log: DurableLog, did: list[str] | None = None) -> None:
        self.did: list[str] = [] if did is None else did
        self.reader = Reader(durable_log.log, Cursor.at_end_of(durable_log.log), self, self)
        durable_log.readers.attach(self.reader)

    def entry(self, entry: Entry, send: Callable[[bytes], None]) -> None:
        send(entry.type.encode())

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Callable[[bytes], None]) -> None:
        said = delta.text.encode() if isinstance(delta, Delta) else delta.data
        send(b"%b@%d:%b" % (delta.item.id.encode(), delta.offset, said))

    def send(self, frame: bytes) -> None:
        self.did.append(frame.decode())

    def when_writable(self, wake: Callable[[], None]) -> None:
        raise AssertionError("there is always room")


# --- writing ---------------------------------------------------------------------------------


async def test_an_entry_is_applied_at_once_and_shown_when_it_is_durable() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    client = Client(durable_log)

    writing = asyncio.create_task(durable_log.append(turn_ended(), renamed("Foxes"), agent_message("Hello")))
    await asyncio.sleep(0)

    assert (durable_log.projections.state.phase, durable_log.projections.state.title) == (Phase.IDLE, "Foxes")
    assert (client.did, durable_log.log.durable, durable_log.phase, writing.done()) == ([], 4, Phase.RUNNING, False)

    await store.write()
    await writing
    assert (client.did, durable_log.log.durable, durable_log.phase) == (["agent_message"], 7, Phase.IDLE)
    assert [entry.type for entry in await store.read(CONVERSATION, after=Seq(4))] == [
        "turn_ended",
        "renamed",
        "agent_message",
    ]


async def test_writers_are_notified_before_readers_and_in_order() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    did: list[str] = []
    Client(durable_log, did)
    durable_log.write(user_message("a", message_id="a"), on_durable=lambda: did.append("first"))
    durable_log.write(agent_message("b"), on_durable=lambda: did.append("second"))

    assert did == []
    await store.write()
    assert did == ["first", "user_message"]
    await store.write()
    assert did == ["first", "user_message", "second", "agent_message"]


async def test_a_notified_caller_can_begin_to_read_without_a_gap() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    clients: list[Client] = []
    durable_log.write(user_message("a", message_id="a"), on_durable=lambda: clients.append(Client(durable_log)))
    durable_log.write(agent_message("b"))
    await store.write()
    assert clients[0].did == []  # the reader already has the durable entries

    await store.write()
    assert clients[0].did == ["agent_message"]


async def test_open_texts_wait_for_entries_that_are_not_durable() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    client = Client(durable_log)
    durable_log.extend(ItemKind.MESSAGE, "Hel")
    durable_log.write(user_message("and?", message_id="a"))
    durable_log.extend(ItemKind.MESSAGE, "lo")
    durable_log.show_output(CallId("c1"), "stdout", b"out")
    late = Client(durable_log)

    assert (client.did, late.did) == (["i1.1@0:Hel"], [])
    await store.write()
    assert client.did[1:] == ["user_message", "i1.1@3:lo", "i1.2@0:out"]
    assert late.did == ["user_message", "i1.1@0:Hello", "i1.2@0:out"]


async def test_the_list_shows_what_the_entries_say() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    durable_log.write(renamed("Foxes"), turn_ended())
    assert (await store.head(CONVERSATION)).summary.state == "running"

    await store.write()
    summary = (await store.head(CONVERSATION)).summary
    assert (summary.title, summary.state, summary.model, summary.cwd) == ("Foxes", "idle", "mock-model", "/project")


async def test_a_cancelled_append_is_written_all_the_same_and_only_then_gives_up() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    client = Client(durable_log)
    writing = asyncio.create_task(durable_log.append(agent_message("Hello")))
    for _ in range(3):  # repeated cancellations have no effect
        await asyncio.sleep(0)
        writing.cancel()
    await asyncio.sleep(0)
    assert (writing.done(), store.waiting) == (False, [["agent_message"]])

    await store.write()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (client.did, durable_log.log.durable) == (["agent_message"], 5)


async def test_a_contradicting_entry_is_refused_and_changes_nothing() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    client = Client(durable_log)
    durable_log.extend(ItemKind.MESSAGE, "Hel")
    durable_log.write(user_message("and?", message_id="a"))

    with pytest.raises(ValueError, match="TurnStarted while running"):
        durable_log.write(agent_message("Hel"), turn_started("2"))
    durable_log.extend(ItemKind.MESSAGE, "lo")
    await store.write()

    assert (durable_log.log.is_durable, list(durable_log.projections.state.messages)) == (True, ["m1", "a"])
    assert client.did == ["i1.1@0:Hel", "user_message", "i1.1@3:lo"]


# --- failing ---------------------------------------------------------------------------------


async def test_a_failed_write_and_later_writes_are_rolled_back() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    client, notified = Client(durable_log), []
    failing = asyncio.create_task(durable_log.append(user_message("a", message_id="a"), turn_ended()))
    after = asyncio.create_task(durable_log.append(renamed("Foxes")))
    await asyncio.sleep(0)
    durable_log.write(turn_started("2"), on_durable=lambda: notified.append("shown"))
    await store.fail()

    assert (durable_log.projections.state.phase, durable_log.projections.state.title) == (Phase.RUNNING, "go")
    assert list(durable_log.projections.state.messages) == ["m1"]
    assert (durable_log.log.last, durable_log.log.durable, durable_log.is_owner) == (4, 4, True)
    for _ in range(2):
        await store.write()
    with pytest.raises(StoreFailed, match=DISK_FULL):
        await failing
    with pytest.raises(StoreFailed):
        await after
    assert (client.did, notified, durable_log.log.last) == ([], [], 4)


async def test_when_there_is_room_again_it_continues() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    client = Client(durable_log)
    durable_log.write(agent_message("lost"))
    durable_log.write(agent_message("lost too"))
    await store.fail()
    durable_log.write(agent_message("kept"))  # before the store has executed the second append
    assert store.waiting == [["agent_message"], ["agent_message"]]
    await store.write()
    await store.write()

    assert client.did == ["agent_message"]
    [kept] = await store.read(CONVERSATION, after=Seq(4))
    assert kept.encoded == b'{"type":"agent_message","message":"kept"}'
    assert (durable_log.log.durable, durable_log.log.entries[4]) == (5, kept)


async def test_an_open_text_continues_after_a_failed_append_of_another_entry() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    client = Client(durable_log)
    durable_log.extend(ItemKind.MESSAGE, "Hel")
    durable_log.write(user_message("and?", message_id="a"))
    durable_log.extend(ItemKind.MESSAGE, "lo ")
    await store.fail()
    durable_log.extend(ItemKind.MESSAGE, "world")

    assert client.did == ["i1.1@0:Hel", "i1.1@3:lo ", "i1.1@6:world"]


async def test_the_end_of_a_command_that_could_not_be_written_can_be_written_later() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    store.slow = False
    await durable_log.append(exec_command_begin("c1", "make"))
    store.slow = True
    client = Client(durable_log)
    durable_log.show_output(CallId("c1"), "stdout", b"out")
    durable_log.write(*durable_log.log.output_records(), exec_command_end("c1", "out"))
    await store.fail()

    durable_log.write(*durable_log.log.output_records(), exec_command_end("c1", "out"))
    await store.write()
    assert client.did == ["i1.1@0:out", "exec_command_end"]
    assert [output.call_id for entry in durable_log.log.entries if (output := entry.output)] == ["c1"]


async def test_a_holder_that_lost_its_lease_cannot_write_and_is_notified_once() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    lost: list[Any] = []
    assert durable_log.lease_lost is not None
    durable_log.lease_lost.add_done_callback(
        lambda _: lost.append((durable_log.is_owner, durable_log.log.last, durable_log.log.open))
    )
    durable_log.extend(ItemKind.MESSAGE, "Hel")
    first = asyncio.create_task(durable_log.append(agent_message("late")))
    second = asyncio.create_task(durable_log.append(turn_ended()))
    await asyncio.sleep(0)
    store.evict(CONVERSATION)
    for _ in range(2):
        await store.write()

    assert lost == [(False, 4, {})]
    for writing in (first, second):
        with pytest.raises(LeaseLost):
            await writing
    with pytest.raises(LeaseLost):
        durable_log.write(agent_message("later"))
    assert await store.read(CONVERSATION, after=Seq(4)) == []


# --- several processes with one log --------------------------------------------------------------


async def test_only_one_may_write_until_it_gives_that_back() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    other = new_durable_log(store)
    with pytest.raises(OwnedElsewhere):
        await other.acquire(address="")
    assert not other.is_owner
    with pytest.raises(LeaseLost):
        other.write(turn_ended())

    await durable_log.release()
    await other.acquire(address="")
    assert (durable_log.is_owner, other.is_owner) == (False, True)
    assert other.log.entries == durable_log.log.entries
    assert other.projections.state.phase is Phase.RUNNING


async def test_entries_of_other_processes_are_applied_and_shown() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    store.slow = False
    other = new_durable_log(store)
    await other.load()
    client = Client(other)
    assert other.log.entries == durable_log.log.entries

    await durable_log.append(agent_message("Hello"), turn_ended())
    await other.load()
    await other.load()
    assert other.log.entries == durable_log.log.entries
    assert (client.did, other.projections.state.phase) == (["agent_message"], Phase.IDLE)
    assert not other.is_owner


async def test_opening_takes_in_what_was_written_since_however_much_that_is() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    store.slow = False
    other = new_durable_log(store)
    await other.load()
    for at in range(0, 2 * PAGE + 1, 500):
        await durable_log.append(*(agent_message(str(number)) for number in range(at, at + 500)))
    await durable_log.release()

    await other.acquire(address="")
    assert other.log.last > 2 * PAGE
    assert other.log.entries == durable_log.log.entries
    await other.append(turn_ended())
    assert (await store.head(CONVERSATION)).last == durable_log.log.last + 1


async def test_the_next_owner_does_not_reuse_names_of_items() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    durable_log.extend(ItemKind.MESSAGE, "Hel")
    await durable_log.release()
    other = new_durable_log(store)
    await other.acquire(address="")
    other.extend(ItemKind.MESSAGE, "Hel")

    assert {*durable_log.log.lengths()} & {*other.log.lengths()} == set()


async def test_a_deleted_conversation_is_deleted_for_all_clients() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    other = new_durable_log(store)
    await other.load()
    await durable_log.delete()

    assert not durable_log.is_owner
    for use in (other.load, partial(other.acquire, address=""), durable_log.load):
        with pytest.raises(UnknownConversation):
            await use()


async def test_a_failed_deletion_leaves_the_conversation_usable() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    store.refuses_to_delete = True
    with pytest.raises(StoreFailed):
        await durable_log.delete()

    assert not durable_log.is_owner
    await new_durable_log(store).acquire(address="")


# --- reading ---------------------------------------------------------------------------------


async def test_waiters_are_woken_when_an_entry_is_durable() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    waiting = asyncio.create_task(durable_log.wait_beyond(Seq(4)))
    durable_log.write(agent_message("Hello"))
    await asyncio.sleep(0)
    assert (waiting.done(), durable_log.readers.is_empty) == (False, False)

    await store.write()
    await waiting
    await durable_log.wait_beyond(Seq(4))
    assert durable_log.readers.is_empty


async def test_a_reader_with_a_bug_is_dropped_and_the_others_read_on(caplog: pytest.LogCaptureFixture) -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    broken, sound = Client(durable_log), Client(durable_log)
    dropped: list[Reader] = []
    broken.reader._on_dropped = lambda error: dropped.append(broken.reader)
    broken.entry = lambda entry, send: send(b"" + None)  # type: ignore[method-assign, operator]  # the bug
    durable_log.write(agent_message("Hello"))
    await store.write()
    durable_log.write(turn_ended())
    await store.write()

    assert (dropped, sound.did, durable_log.log.durable) == ([broken.reader], ["agent_message"], 6)
    assert caplog.messages == [f"a reader of {CONVERSATION} failed and was dropped"]


# --- waiting for writes ----------------------------------------------------------------------


@pytest.mark.parametrize("succeeds", [True, False])
async def test_durable_returns_when_all_writes_have_ended_however_they_did(succeeds: bool) -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    writing = durable_log.write(renamed("Foxes"))
    waiting = asyncio.create_task(durable_log.durable())
    await store.until_waiting()
    assert not waiting.done()
    await (store.write() if succeeds else store.fail())
    await waiting

    assert (writing.exception() is None, durable_log.log.is_durable) == (succeeds, True)


async def test_a_write_that_fails_alone_leaves_those_before_it_under_way() -> None:
    store = SlowStore()
    durable_log = await log_with_entries(store)
    first = durable_log.write(agent_message("one"))
    second = durable_log.write(user_message("two"))
    await store.until_waiting(2)
    await store.fail_last()
    third = durable_log.write(agent_message("three"))
    await store.write()
    await store.write()

    assert (first.exception(), type(second.exception()), third.exception()) == (None, StoreFailed, None)
    assert [entry.type for entry in durable_log.log.entries[-2:]] == ["agent_message"] * 2
    assert durable_log.log.durable == durable_log.log.last == (await store.head(CONVERSATION)).last


# --- pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("base", range(9))
async def test_pages_are_the_same_wherever_the_entries_in_memory_begin(base: int) -> None:
    store = SlowStore()
    log = await log_with_entries(store)
    store.slow = False
    await log.append(*(agent_message("x" * number) for number in range(4)))
    store.slow = True
    whole = [*log.log.entries]
    pending = log.write(agent_message("not durable"))

    log.log.trim(Seq(base))

    for after in range(len(whole) + 2):
        assert [*await log.read_after(Seq(after))] == whole[after:]
        assert [*await log.read_after(Seq(after), limit=2)] == whole[after : after + 2]
        assert [*await log.read_after(Seq(after), max_bytes=0)] == whole[after : after + 1]
    for before in range(1, len(whole) + 3):
        earlier = whole[: before - 1]
        assert [*await log.read_before(Seq(before), limit=2)] == earlier[-2:]
        assert [*await log.read_before(Seq(before), max_bytes=0)] == earlier[-1:]
    await store.write()
    await pending
