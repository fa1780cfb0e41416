"""Thousands of conversations of a server that keeps few in memory: eviction and loading are not visible to
clients."""

from __future__ import annotations

import asyncio
from random import Random
from statistics import fmean
from typing import Final

import pytest

from kit.clients.soak import Size, Soaked, Soaking, new_seed, stints
from kit.models.random_model import RandomModel, forgetting
from parley.testing import ScriptedModel

FEW: Final = """
[store]
idle_seconds = 1
idle_conversations = 20
"""

AWAY: Final = 2
"""The number of groups between the first and the second use of a conversation.

It is large enough for the conversation to be evicted.
"""
LEVEL: Final = 1.05
"""The maximum ratio of the server's memory at the end to its memory in the first half.

The load is the same in every group. If the server kept the logs of the large run in memory, the ratio would be
about 1.5.
"""
STILL_FILLING: Final = 1.2
"""The maximum ratio in a run that ends before the caches are full."""


async def soaked(
    parley_model: ScriptedModel, conversations: int, *, at_once: int, seed: str | None = None
) -> list[int]:
    """Return the memory of the server after each group of this many new and as many reloaded conversations."""
    seed = seed or new_seed()
    random_model, luck = RandomModel(seed), Random(seed)
    parley_model.set_handler(forgetting(parley_model, random_model))
    client = Soaking(parley_model, config=FEW)
    lives = [
        Soaked(client, random_model, f"c{number}", Random(f"{seed}/{number}")) for number in range(conversations)
    ]
    groups = [lives[first : first + at_once] for first in range(0, conversations, at_once)]
    sizes: list[Size] = []
    async with client, asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(client.listen())
        for number in range(len(groups) + AWAY):
            beginning = groups[number] if number < len(groups) else []
            returning = groups[number - AWAY] if number >= AWAY else []
            for life in beginning:
                await life.begin()
            sleeper, *others = luck.sample(together := [*beginning, *returning], len(together))
            await stints(others, sleeper)
            for life in together:
                await life.leave()
            sizes.append(Size(client, lives))
        listening.cancel()
    resident = [size.resident for size in sizes[AWAY : len(groups)]]
    counted = {"turns": sizes[-1].turns, **client.counts, "bytes in the logs": sizes[-1].explained}
    print(", ".join(f"{number} {what}" for what, number in counted.items()), "resident:", resident)
    assert "Traceback" not in client.log_text()
    assert client.exit_code == 0
    return resident


def growth(resident: list[int]) -> float:
    """Return the growth of memory from the second to the last quarter; caches fill in the first."""
    quarter = len(resident) // 4
    return fmean(resident[-quarter:]) / fmean(resident[quarter : 2 * quarter])


@pytest.mark.long
async def test_conversations_leave_memory_and_come_back_unnoticed(parley_model: ScriptedModel) -> None:
    resident = await soaked(parley_model, 12, at_once=2, seed="1")
    assert growth(resident) < STILL_FILLING


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_two_thousand_conversations_come_and_go_and_memory_stays_level(parley_model: ScriptedModel) -> None:
    resident = await soaked(parley_model, 2000, at_once=100)
    assert growth(resident) < LEVEL
