"""Hundreds of random conversations of one server over many turns."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random
from typing import Final

import pytest

from kit.clients.soak import (
    SLACK_BYTES,
    TIMEOUT_SECONDS,
    Calling,
    Size,
    Soaked,
    Soaking,
    new_seed,
    stints,
)
from kit.models.random_model import RandomModel, forgetting, only_one
from parley.client.conversation import ReadEvent
from parley.testing import Call, ParleyProcess, ScriptedModel

CONVERSATIONS: Final = 300
STINTS: Final = 16
"""The number of periods in each half of the run.

After each period, all readers of a conversation are compared with the log.
"""


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_after_two_minutes_of_everything_all_views_agree_and_nothing_is_left() -> None:
    seed = new_seed()
    random_model = RandomModel(seed)
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModel())
        client = Soaking(model)
        async with client, asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(client.listen())
            sleeper, *lives = (
                Soaked(client, random_model, f"c{number}", Random(f"{seed}/{number}"))
                for number in range(CONVERSATIONS)
            )
            model.set_handler(lambda _: only_one("Hello"))
            await client.begin_call(Calling("hello"), "codex", cwd=str(client.work))[1]
            await client.ping()
            files = client.open_files()

            model.set_handler(forgetting(model, random_model))
            for life in (sleeper, *lives):
                await life.begin()
            await stints(lives, sleeper)
            threads = client.threads()  # the number of threads that reading the store needs at most
            sizes = [Size(client, [sleeper, *lives])]
            for _ in range(2):
                for _ in range(STINTS):
                    await stints(lives, sleeper)
                sizes.append(Size(client, [sleeper, *lives]))

            await stack.aclose()  # stop the model, so that its connections close
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while client.open_files() > files:
                    await client.ping()
            left = client.open_files(), client.threads(), client.waiting
            listening.cancel()

    _, before, after = sizes
    grown, explained = after.resident - before.resident, after.explained - before.explained
    counted = {"turns": after.turns, "entries": after.entries, **client.counts, **random_model.counts}
    counted |= {"bytes grown in the second half": grown, "of which the logs explain": explained}
    print(", ".join(f"{number} {what}" for what, number in counted.items()))
    assert grown < explained + SLACK_BYTES
    assert (left[0], left[2]) == (files, {})
    assert left[1] <= threads
    assert client.counts["texts cut short"] > 0  # some readers did not keep up
    assert client.exit_code == 0
    assert "Traceback" not in client.log_text()


# --- waits that end at the time of an event ------------------------------------------------------------

PAGERS: Final = 20
RESPONSES: Final = 60


@pytest.mark.promises("read.wait")
async def test_no_page_skips_what_happens_in_the_moment_in_which_its_wait_ends(
    parley_model: ScriptedModel,
) -> None:
    """The timeouts of many calls are about as long as the time until an event arrives."""
    for number in range(RESPONSES):
        parley_model.says(f"word {number}", Call("no_such_tool", {}, call_id=f"c{number}"))
    async with asyncio.timeout(4 * TIMEOUT_SECONDS), ParleyProcess(parley_model, checked=False) as parley:
        conversation = await parley.create()
        await conversation.send("speak")

        async def pages(luck: Random) -> list[ReadEvent]:
            events: list[ReadEvent] = []
            after, goes_on = 0, True
            while goes_on:
                page = await conversation.read(after=after, wait_seconds=luck.uniform(0.001, 0.02))
                events += page.events
                after, goes_on = page.seq, page.state != "idle" or page.events != ()
            return events

        read = await asyncio.gather(*(pages(Random(number)) for number in range(PAGERS)))
        whole = await conversation.read(after=0, limit=1000)

        assert len(whole.events) == 2 + RESPONSES + 2
        assert read == [list(whole.events)] * PAGERS
