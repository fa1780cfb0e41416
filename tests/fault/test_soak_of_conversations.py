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
    """How large the server was when some conversations had come and gone, and when all had, twice."""
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
    first_size, *_, last_size = sizes
    counted = {"turns": last_size.turns, **client.counts}
    counted |= {"bytes grown": last_size.resident - first_size.resident, "in the logs": last_size.explained}
    print(", ".join(f"{number} {what}" for what, number in counted.items()))
    assert "Traceback" not in client.log_text()
    assert client.exit_code == 0
    return first_size, last_size


def check(before: Size, after: Size) -> None:
    """Their logs are not in memory, whatever else an allocator and the database keep for themselves."""
    assert after.resident - before.resident < SLACK_BYTES + after.explained // 2


async def test_conversations_leave_memory_and_come_back_unnoticed(scripted_model: ScriptedModel) -> None:
    check(*await soaked(scripted_model, 40))


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_two_thousand_conversations_come_and_go_and_memory_does_not_grow_with_their_logs(
    scripted_model: ScriptedModel,
) -> None:
    check(*await soaked(scripted_model, 2000))
