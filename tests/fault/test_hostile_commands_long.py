"""Hostile commands for which the executor has to lose its patience first, and many of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from uuid import uuid4

import pytest

from kit.running import PATIENCE_SECONDS, PYTHON, Ran, marked, open_descriptors, ran
from parley.errors import CommandNotStarted
from parley.tools.commands.executor import Executor

FORK_SERVER = "$(cut -d ' ' -f 4 /proc/$PPID/stat)"


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    executor = Executor()
    yield executor
    async with asyncio.timeout(PATIENCE_SECONDS):
        await executor.close()


@pytest.mark.long
async def test_a_command_that_stops_both_who_watch_over_it_is_killed(executor: Executor) -> None:
    marker = uuid4().hex
    script = f"setsid sh -c 'sleep 1000; :' {marker} & kill -STOP $PPID {FORK_SERVER}; exit 0"

    result = await ran(executor, "sh", "-c", script, marker, timeout_seconds=0.1)

    assert (result, marked(marker)) == (Ran(timed_out=True), [])
    assert await ran(executor, "true") == Ran(exit_code=0)


@pytest.mark.long
async def test_a_stopped_fork_server_fails_the_next_command_and_not_the_one_after(executor: Executor) -> None:
    stopped = await ran(executor, "sh", "-c", f"kill -STOP {FORK_SERVER}")
    with pytest.raises(CommandNotStarted, match="does not answer"):
        await ran(executor, "true")

    assert stopped == Ran(exit_code=0)
    assert await ran(executor, "true") == Ran(exit_code=0)


@pytest.mark.long
async def test_closing_ends_a_fork_server_that_was_stopped(executor: Executor) -> None:
    before = open_descriptors()
    stopped = await ran(executor, "sh", "-c", f"kill -STOP {FORK_SERVER}")
    await executor.close()

    assert (stopped, open_descriptors()) == (Ran(exit_code=0), before)


@pytest.mark.long
async def test_thousands_of_commands_of_all_kinds_leave_nothing(executor: Executor) -> None:
    marker = uuid4().hex
    random = Random(1)
    again = "import os\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid()"
    kinds = [
        ("true",),
        ("sh", "-c", "exit 3"),
        ("sh", "-c", f"setsid sh -c 'sleep 1000; :' {marker} & exit 0"),
        ("sh", "-c", f"kill -9 $PPID; sleep 1000; : {marker}"),
        ("sh", "-c", f"kill -9 {FORK_SERVER}; sleep 1000; : {marker}"),
        ("no-such-program",),
        ("yes",),
        (*PYTHON, again, marker),
    ]

    async def one() -> None:
        task = asyncio.create_task(ran(executor, *random.choice(kinds), timeout_seconds=random.random() / 5))
        if random.random() < 0.2:
            asyncio.get_running_loop().call_later(random.random() / 20, task.cancel)
        await asyncio.gather(task, return_exceptions=True)

    await ran(executor, "true")
    before = open_descriptors()
    for _ in range(100):
        await asyncio.gather(*(one() for _ in range(30)))
        assert marked(marker) == []

    await ran(executor, "true")
    assert open_descriptors() == before
