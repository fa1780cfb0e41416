"""Programs of tool servers whose start fails: no process is left."""

from __future__ import annotations

import asyncio
import errno
import os
import sys

import pytest

from kit.servers.tool_servers import ENVIRON, TIMEOUT_SECONDS, marker, running
from kit.system.commands import open_descriptors
from kit.system.waiting import until
from parley.tools.errors import NotStarted
from parley.tools.servers.program import Program

SLEEPING = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"


def argv(mark: str, code: str = SLEEPING) -> list[str]:
    return [sys.executable, "-c", code, mark]


def no_more_descriptors(pid: int) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_a_program_that_cannot_be_watched_is_ended_with_all_its_pipes() -> None:
    mark = marker()
    descriptors = open_descriptors()

    async with asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(NotStarted) as refused:
            await Program.start(argv(mark), ENVIRON, name="x", pidfd_open=no_more_descriptors)

    assert refused.value.detail.startswith("Too many open files (os error 24): the server can have ")
    await until(lambda: (running(mark), open_descriptors()) == (0, descriptors))


async def test_a_program_whose_start_is_cancelled_is_ended_with_all_its_pipes() -> None:
    mark = marker()
    descriptors = open_descriptors()
    starting: asyncio.Task[Program]

    def cancel_and_open(pid: int) -> int:
        starting.cancel()
        return os.pidfd_open(pid)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        starting = asyncio.create_task(Program.start(argv(mark), ENVIRON, name="x", pidfd_open=cancel_and_open))
        await asyncio.wait([starting])

    assert starting.cancelled()
    await until(lambda: (running(mark), open_descriptors()) == (0, descriptors))


async def test_where_the_system_does_not_tell_of_ends_a_thread_waits_for_them() -> None:
    mark = marker()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        short = await Program.start(argv(mark, "raise SystemExit(3)"), ENVIRON, name="x", pidfd_open=None)
        ended = await short.wait(TIMEOUT_SECONDS)
        how = short.how_it_ended()
        await short.stop()
        stubborn = await Program.start(argv(mark), ENVIRON, name="y", pidfd_open=None)
        said = await stubborn.read()
        await stubborn.stop()
        await until(lambda: running(mark) == 0)

    assert (ended, how) == (True, "the program ended before it answered (exit code 3)")
    assert (said, await stubborn.wait(0)) == (b"up\n", True)
