"""Thousands of conversations of a server that keeps few of them in memory: they come and go, and nobody notices."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

import pytest

from kit.moods import Moods, forgetting
from kit.soaking import SLACK_BYTES, Life, Size, Soaking, new_seed, stints
from parley.testing import ScriptedModel

FEW: Final = """
[store]
idle_seconds = 1
idle_conversations = 20
"""

BATCH: Final = 200
"""Conversations that are taken up together."""


async def soaked(scripted_model: ScriptedModel, conversations: int) -> tuple[Size, Size]:
    """How large the server was when half of the conversations had come and gone twice, and when all had."""
    seed = new_seed()
    moods, luck = Moods(seed), Random(seed)
    scripted_model.replies(forgetting(scripted_model, moods))
    client = Soaking(scripted_model, config=FEW)
    sizes: list[Size] = []
    async with client, asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(client.listen())
        lives = [Life(client, moods, f"c{number}", Random(f"{seed}/{number}")) for number in range(conversations)]
        for begun in (False, True):
            luck.shuffle(lives)
            for first in range(0, len(lives), BATCH):
                batch = lives[first : first + BATCH]
                for life in () if begun else batch:
                    await life.begin()
                await stints(batch[1:], batch[0])
                for life in batch:
                    await life.leave()
                sizes.append(Size(client, lives))
        listening.cancel()
    half, twice = sizes[len(sizes) * 3 // 4 - 1], sizes[-1]
    counted = {"turns": twice.turns, **client.counts}
    counted |= {
        "bytes grown": twice.resident - half.resident,
        "of more in the logs": twice.explained - half.explained,
    }
    print(", ".join(f"{number} {what}" for what, number in counted.items()))
    print("megabytes, batch by batch:", *(size.resident // 2**20 for size in sizes))
    assert "Traceback" not in client.log_text()
    assert client.exit_code == 0
    return half, twice


def check(before: Size, after: Size) -> None:
    """Their logs are not in memory, whatever else an allocator and the database keep for themselves."""
    assert after.resident - before.resident < SLACK_BYTES


async def test_conversations_leave_memory_and_come_back_unnoticed(scripted_model: ScriptedModel) -> None:
    check(*await soaked(scripted_model, 40))


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_two_thousand_conversations_come_and_go_and_memory_does_not_grow_with_their_logs(
    scripted_model: ScriptedModel,
) -> None:
    check(*await soaked(scripted_model, 2000))
