"""Work in threads, with futures for the results."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.common.threads import begin_in_thread


async def test_the_result_comes_from_a_new_daemon_thread() -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        thread = await begin_in_thread(threading.current_thread, name="worker")

    assert (thread.name, thread.daemon) == ("worker", True)


async def test_a_failure_is_raised() -> None:
    def work() -> None:
        raise FileNotFoundError("missing")

    with pytest.raises(FileNotFoundError):
        await begin_in_thread(work, name="worker")


async def test_cancelling_the_future_does_not_end_the_work() -> None:
    proceed, done = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        assert proceed.wait(TIMEOUT_SECONDS)
        loop.call_soon_threadsafe(done.set)

    future = begin_in_thread(work, name="worker")
    future.cancel()
    proceed.set()

    async with asyncio.timeout(TIMEOUT_SECONDS):
        await done.wait()
    await asyncio.sleep(0)  # the result arrives and is dropped
    assert future.cancelled()


def test_work_may_outlive_its_event_loop() -> None:
    proceed, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert proceed.wait(TIMEOUT_SECONDS)
        ended.set()

    async def begin() -> None:
        begin_in_thread(work, name="worker")

    asyncio.run(begin())
    proceed.set()

    assert ended.wait(TIMEOUT_SECONDS)
