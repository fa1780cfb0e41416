"""A log keeps its newest entries in memory; checkpoints let another process load it without reading it all."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any, Final

import pytest

from kit.builders.approvals import approval_settlement, command_approval
from kit.builders.entries import FIRST, summary
from kit.builders.events import agent_message, task_complete, task_started, text, user_message
from kit.builders.logs import contents_of, log_of
from kit.builders.records import (
    call,
    call_output,
    message,
    model_asked,
    model_said,
    renamed,
    settings_chosen,
    turn_ended,
    turn_started,
)
from kit.servers.lives import Life
from kit.servers.local_server import StandingClock
from kit.servers.slow_store import SlowStore
from parley.conversation.errors import ParentUnknown
from parley.conversation.history import UserItem
from parley.conversation.log import LogPayload
from parley.conversation.projections import Projections
from parley.conversation.state import Phase
from parley.errors import ApprovalIsSettled, StoreFailed
from parley.ports.store import CHECKPOINT_BYTES, CHECKPOINT_ENTRIES, Checkpoint
from parley.runtime.checkpoints import TAIL_ENTRIES, Checkpoints
from parley.runtime.durable_log import DurableLog
from parley.runtime.errors import MessageIdTaken
from parley.wire.ids import START, ApprovalId, ConversationId, MessageId, Seq
from parley.wire.principals import LOCAL

CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")
ROOT = MessageId(CONVERSATION)
EVERY, TAIL = 10, 20


def log_in(store: SlowStore) -> DurableLog:
    checkpoints = Checkpoints(CONVERSATION, store, every=EVERY, tail=TAIL)
    return DurableLog(CONVERSATION, store, StandingClock(), checkpoints=checkpoints)


def turn(number: int, parent: str | None = None) -> list[LogPayload]:
    return [
        turn_started(str(number)),
        task_started(),
        user_message(f"Question {number}", message_id=f"m{number}", parent=parent),
        model_asked(),
        model_said(call(f"c{number}")),
        *command_approval(number, "make"),
        approval_settlement(number, "approved"),
        call_output(f"c{number}", "made"),
        model_asked(),
        model_said(message("Answer")),
        agent_message("Answer"),
        task_complete("Answer"),
        turn_ended(),
    ]


async def written(store: SlowStore, turns: int) -> DurableLog:
    log = log_in(store)
    await log.create(settings_chosen())
    await log.acquire(address="")
    for number in range(1, turns + 1):
        for payload in turn(number):
            await log.append(payload)
    return log


async def whole(store: SlowStore) -> Projections:
    projections, after = Projections(ROOT), START
    while page := await store.read(CONVERSATION, after=after):
        projections.replay(page)
        after = page[-1].seq
    return projections


async def contents_with_texts(log: DurableLog) -> dict[str, Any]:
    await log.hold_texts()
    return contents_of(log.projections)


@pytest.mark.parametrize("turns", [1, 2, 3, 7, 20])
async def test_a_log_keeps_its_newest_entries_and_says_what_the_whole_log_says(turns: int) -> None:
    store = SlowStore()
    log = await written(store, turns)

    assert TAIL <= len(log.log.entries) <= TAIL + 3 * EVERY or log.log.base == START
    assert len(log.log.entries) == log.log.last - log.log.base
    assert await contents_with_texts(log) == contents_of(await whole(store))
    assert all(seq > log.log.base for seq in log.projections.state.messages.values())


@pytest.mark.parametrize("turns", [3, 20])
async def test_another_process_begins_at_the_checkpoint(turns: int) -> None:
    store = SlowStore()
    await (await written(store, turns)).release()
    checkpoint = await store.checkpoint(CONVERSATION)
    assert checkpoint is not None
    other = log_in(store)
    await other.load()

    assert checkpoint.seq <= other.log.base + TAIL + EVERY
    assert await contents_with_texts(other) == contents_of(await whole(store))
    await other.acquire(address="")
    await other.append(*turn(turns + 1))
    assert await contents_with_texts(other) == contents_of(await whole(store))


@pytest.mark.parametrize("data", [b"", b"garbage"])
async def test_without_a_readable_checkpoint_all_entries_are_read(data: bytes) -> None:
    store = SlowStore()
    log = await written(store, 5)
    await log.release()
    store._conversations[CONVERSATION].checkpoint = Checkpoint(seq=Seq(11), data=data) if data else None
    other = log_in(store)
    await other.load()

    assert await contents_with_texts(other) == contents_of(await whole(store))


async def test_a_turn_begins_in_the_middle_of_which_the_log_was_left_and_is_ended(home: str) -> None:
    """A checkpoint may be in the middle of a turn."""
    store = SlowStore()
    log = await written(store, 2)
    await log.append(*turn(3)[:9])
    await log.release()
    other = log_in(store)
    await other.load()

    assert await contents_with_texts(other) == contents_of(await whole(store))
    assert (other.phase, list(other.projections.state.inputs)) == (Phase.RUNNING, ["m3"])


@pytest.mark.parametrize("written_before", range(0, 14, 3))
async def test_a_refused_write_has_no_effect(written_before: int) -> None:
    store = SlowStore()
    log = await written(store, 4)
    payloads = turn(5)
    if written_before:
        await log.append(*payloads[:written_before])
    store.slow = True
    failing = [log.write(payload) for payload in payloads[written_before:]]
    await store.fail()
    for one in failing[1:]:
        await store.write()
        assert isinstance(one.exception(), StoreFailed)

    assert isinstance(failing[0].exception(), StoreFailed)
    assert await contents_with_texts(log) == contents_of(await whole(store))


async def test_a_branch_begins_at_a_message_of_any_age() -> None:
    store = SlowStore()
    log = await written(store, 10)
    assert not log.projections.knows(MessageId("m2"))
    await log.fold_whole()
    await log.append(*turn(11, parent="m2"))
    assert await contents_with_texts(log) == contents_of(await whole(store))

    store.slow = True
    refused = log.write(*turn(12))
    await store.fail()
    assert isinstance(refused.exception(), StoreFailed)
    assert await contents_with_texts(log) == contents_of(await whole(store))


async def test_a_write_that_is_refused_in_a_branch_at_an_old_message_leaves_the_branch() -> None:
    store = SlowStore()
    log = await written(store, 10)
    await log.fold_whole()
    await log.append(*turn(11, parent="m2")[:4])
    store.slow = True
    refused = log.write(*turn(11)[4:5])
    await store.fail()

    assert isinstance(refused.exception(), StoreFailed)
    assert await contents_with_texts(log) == contents_of(await whole(store))


async def test_the_texts_of_a_running_turn_stay_although_a_write_is_refused() -> None:
    store = SlowStore()
    log = await written(store, 10)
    await log.hold_texts()
    store.slow = True
    refused = log.write(*turn(11)[:3])
    await store.fail()

    assert isinstance(refused.exception(), StoreFailed)
    assert log.history.missing == []
    log.release_texts()
    assert log.history.missing != []


async def test_a_branch_that_another_process_began_is_read() -> None:
    store = SlowStore()
    log = await written(store, 10)
    await log.release()
    other = log_in(store)
    await other.load()
    await log.acquire(address="")
    await log.fold_whole()
    await log.append(*turn(11, parent="m2"))
    await other.load()

    assert await contents_with_texts(other) == contents_of(await whole(store))


async def test_a_checkpoint_is_stored_once_for_so_many_entries_and_is_small() -> None:
    store = SlowStore()
    log = DurableLog(CONVERSATION, store, StandingClock())
    await log.create(settings_chosen())
    await log.acquire(address="")
    stored: set[Seq] = set()
    for number in range(1, 400):
        await log.append(*turn(number))
        if (checkpoint := await store.checkpoint(CONVERSATION)) is not None:
            stored.add(checkpoint.seq)
            assert len(checkpoint.data) <= CHECKPOINT_BYTES

    positions = sorted(stored)
    assert len(positions) >= 4
    assert all(later - seq >= CHECKPOINT_ENTRIES for seq, later in pairwise(positions))
    assert TAIL_ENTRIES <= len(log.log.entries) <= TAIL_ENTRIES + 2 * CHECKPOINT_ENTRIES


async def test_a_checkpoint_of_a_long_history_is_encoded_in_a_thread_and_stored_before_the_lease_is_released() -> (
    None
):
    store = SlowStore()
    log = DurableLog(CONVERSATION, store, StandingClock())
    await log.create(settings_chosen())
    await log.acquire(address="")
    for number in range(1, 6):
        said: list[LogPayload] = [user_message("?", message_id=f"m{number}"), model_asked()]
        answers = [model_said(message("Answer")) for _ in range(1000)]
        await log.append(turn_started(str(number)), *said, *answers, turn_ended())
    await log.release()

    checkpoint = await store.checkpoint(CONVERSATION)
    assert checkpoint is not None
    assert checkpoint.seq == log.log.last
    assert Projections.restored(checkpoint.data, ROOT).history.size == 5005


# --- through the mailbox -----------------------------------------------------------------------


async def long(life: Life, turns: int = 30) -> ConversationId:
    """Create a conversation whose first messages are not in memory."""
    conversation = await life.create()
    await life.send(conversation, "say Hello", message_id="first")
    await life.until(conversation, Phase.IDLE)
    await life.send(conversation, "run make", message_id="second")
    await life.until(conversation, Phase.ASKING)
    approval = conversation.approvals.open
    assert approval is not None
    await conversation.approvals.answer(approval.approval_id, "denied", by="tool", principal=LOCAL, reason="no")
    await life.until(conversation, Phase.IDLE)
    for number in range(turns):
        await conversation.rename(f"Title {number}")
    return conversation.id


async def long_life(home: str, store: SlowStore) -> tuple[ConversationId, ApprovalId]:
    """Create a conversation that the next process loads from its checkpoint.

    Also return the id of an approval in it.
    """
    async with Life(home, store) as life:
        conversation_id = await long(life, CHECKPOINT_ENTRIES)
        conversation = await life.find(conversation_id)
        await life.send(conversation, "say Hello", message_id="third")  # the end of the turn makes a checkpoint
        await life.until(conversation, Phase.IDLE)
        for number in range(2 * TAIL_ENTRIES):
            await conversation.rename(f"Title {number}")
        [approval] = conversation._log.projections.approvals.settled
        assert conversation.log.base > TAIL_ENTRIES - CHECKPOINT_ENTRIES
    return conversation_id, approval


async def test_messages_and_approvals_that_are_not_in_memory_are_known(home: str) -> None:
    store = SlowStore()
    conversation_id, approval = await long_life(home, store)
    async with Life(home, store) as life:
        conversation = await life.find(conversation_id)
        assert (conversation.log.base > START, list(conversation.state.messages)) == (True, [])

        again = await life.send(conversation, "say Hello", message_id="first")
        assert (again.turn, again.first) == (
            None,
            await store.position_of(conversation_id, "user_message", "first"),
        )
        with pytest.raises(MessageIdTaken):
            await life.send(conversation, "say something else", message_id="first")
        found = await life.conversations.find_by_approval(approval)
        assert found is conversation
        with pytest.raises(ApprovalIsSettled):
            await conversation.approvals.answer(approval, "approved", by="tool", principal=LOCAL)


async def test_the_model_is_sent_texts_that_are_not_in_memory_and_they_are_freed_after_the_turn(home: str) -> None:
    store = SlowStore()
    conversation_id, _ = await long_life(home, store)
    async with Life(home, store) as life:
        conversation = await life.find(conversation_id)
        await life.send(conversation, "say And?")
        await life.until(conversation, Phase.IDLE)
        await life.until_at_rest(conversation)

        sent = [item.content for item in life.requests[0].history if isinstance(item, UserItem)]
        assert sent == [(text(words),) for words in ("say Hello", "run make", "say Hello", "say And?")]
        assert len(conversation._log.history.missing) >= 4


async def test_a_branch_begins_at_a_message_that_is_not_in_memory(home: str) -> None:
    store = SlowStore()
    conversation_id, _ = await long_life(home, store)
    async with Life(home, store) as life:
        conversation = await life.find(conversation_id)
        for parent, seen in (("first", ["say Hello", "say A"]), (conversation_id, ["say B"])):
            words = seen[-1]
            await conversation.submit(
                (text(words),), parent_id=MessageId(parent), principal=LOCAL, accepted=lambda _: None
            )
            await life.until(conversation, Phase.IDLE)
            sent = [item.content for item in life.requests[-1].history if isinstance(item, UserItem)]
            assert sent == [(text(one),) for one in seen]
        with pytest.raises(ParentUnknown):
            await conversation.submit(
                (text("?"),), parent_id=MessageId("unknown"), principal=LOCAL, accepted=lambda _: None
            )


async def test_a_long_log_without_a_checkpoint_gets_one_when_it_is_read(home: str) -> None:
    store = SlowStore()
    entries = log_of(settings_chosen(), *(renamed(f"Title {number}") for number in range(12_000))).entries
    await store.create(FIRST, entries, summary())
    async with Life(home, store) as life:
        conversation = await life.find(FIRST)
        await conversation._mailbox.at_rest()

        checkpoint = await store.checkpoint(FIRST)
        assert checkpoint is not None
        assert checkpoint.seq > len(entries) - 2 * CHECKPOINT_ENTRIES
        assert (await store.head(FIRST)).owner is None


RESTORE_IN_MANY_THREADS: Final = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from parley.conversation.projections import Projections
from parley.runtime.checkpoints import Checkpoints
from parley.wire.ids import ConversationId

data = Projections().checkpoint()

class Store:
    async def checkpoint(self, conversation_id):
        return SimpleNamespace(data=data, seq=0)

async def main():
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
    every = [Checkpoints(ConversationId(str(n)), Store(), every=10, tail=10).restore() for n in range(64)]
    assert None not in await asyncio.gather(*every)

sys.setswitchinterval(1e-6)
asyncio.run(main())
"""


def test_the_first_checkpoints_can_be_restored_in_many_threads_at_once() -> None:
    """Two threads that examined the type of a checkpoint at the same time ended the process with a signal."""
    codes = [
        subprocess.run((sys.executable, "-c", RESTORE_IN_MANY_THREADS), check=False).returncode for _ in range(4)
    ]

    assert codes == [0, 0, 0, 0]
