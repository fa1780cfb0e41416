"""Thousands of concurrent hostile commands."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import uuid4

import pytest

from kit.system.commands import PYTHON, marked, open_descriptors, ran
from parley.tools.commands.executor import Executor

FORK_SERVER = "$(cut -d ' ' -f 4 /proc/$PPID/stat)"


@pytest.mark.long
@pytest.mark.parametrize(
    "killed", ["$PPID", FORK_SERVER], ids=["supervisors are killed", "fork servers are killed"]
)
async def test_thousands_of_commands_of_all_kinds_leave_nothing(executor: Executor, killed: str) -> None:
    marker = uuid4().hex
    random = Random(1)
    again = "import os\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid()"
    kinds = [
        ("true",),
        ("sh", "-c", "exit 3"),
        ("sh", "-c", f"setsid sh -c 'sleep 1000; :' {marker} & exit 0"),
        ("sh", "-c", f"kill -9 {killed}; sleep 1000; : {marker}"),
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
    assert open_descriptors() <= before  # descriptors that only the start needed may be closed by now
