"""A message arrives while the end of a turn is not durable yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.state import Phase
from parley.errors import ShuttingDown
from parley.runtime.conversation import Conversation
from parley.runtime.message_intake import Accepted
from parley.wire.items import TextItem
from parley.wire.principals import LOCAL

TURN = ["turn_started", "task_started", "user_message"]
END = ["model_asked", "agent_message", "model_said", "task_complete", "turn_ended"]


async def between(
    life: Life, store: SlowStore, *, second_message: str = "run one"
) -> tuple[Conversation, asyncio.Task[None], list[Accepted]]:
    """Create a conversation whose first turn has an end that is not durable, and send it a second message."""
    conversation = await life.create()
    store.slow = True
    first = asyncio.create_task(life.send(conversation, "say One"))
    while not store.waiting or store.waiting[-1] != END:
        await store.until_waiting()
        if store.waiting[0] != END:
            await store.write()
    await first
    taken: list[Accepted] = []
    second = asyncio.create_task(
        conversation.submit((TextItem(text=second_message),), principal=LOCAL, accepted=taken.append)
    )
    for _ in range(20):
        await asyncio.sleep(0)
    assert store.waiting == [END]
    return conversation, second, taken


async def catch_up(conversation: Conversation, store: SlowStore, *, is_cut: bool = True) -> None:
    """Make the end and the start durable; the first write of the second turn waits until the test continues it."""
    await store.write()
    await store.until_waiting()
    assert store.waiting == [TURN]
    await store.write()
    await store.until_waiting()
    if is_cut and conversation.turn is not None:
        assert conversation.turn.cut_short is not None
    store.slow = False
    await store.write()


async def test_an_interrupt_then_is_for_the_second_one(tmp_path: Path) -> None:
    store = SlowStore()
    async with Life(str(tmp_path), store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation, second, taken = await between(life, store)
        interrupted = asyncio.create_task(conversation.interrupt_unfinished(principal=LOCAL))
        await asyncio.sleep(0)
        await catch_up(conversation, store)
        await asyncio.gather(second, interrupted)
        await life.until(conversation, Phase.IDLE)
        kinds = [entry.type for entry in conversation.log.entries]

    assert kinds[-2:] == ["error", "turn_ended"]
    assert [kind for kind in kinds if kind in ("turn_started", "turn_ended")] == ["turn_started", "turn_ended"] * 2
    assert [one.turn is not None and one.turn.work.cancelled() for one in taken] == [True]


async def test_cancelling_the_ended_first_turn_has_no_effect(tmp_path: Path) -> None:
    store = SlowStore()
    async with Life(str(tmp_path), store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation, second, _ = await between(life, store, second_message="say Two")
        conversation.interrupt(principal=LOCAL)
        await catch_up(conversation, store, is_cut=False)
        await second
        await life.until(conversation, Phase.IDLE)
        kinds = [entry.type for entry in conversation.log.entries]

    assert kinds[-5:] == END
    assert "error" not in kinds


async def test_a_server_that_ends_then_refuses_the_second_message(tmp_path: Path) -> None:
    store = SlowStore()
    async with Life(str(tmp_path), store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation, second, _ = await between(life, store)
        ending = asyncio.create_task(life.stop())
        await asyncio.sleep(0)
        await store.write()
        with pytest.raises(ShuttingDown):
            await second
        await ending
        kinds = [entry.type for entry in conversation.log.entries]

    assert kinds[-5:] == END
    assert kinds.count("turn_ended") == 1
