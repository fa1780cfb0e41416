from __future__ import annotations

import asyncio
import threading

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.errors import CommandNotStarted
from parley.sandbox.threads import in_thread


async def test_work_is_done_beside_the_loop_and_what_comes_of_it_returned() -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        threads = {await in_thread(threading.get_ident) for _ in range(3)}

    assert threading.get_ident() not in threads


async def test_errors_of_the_work_are_raised() -> None:
    def work() -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError):
        await in_thread(work)


async def test_work_that_is_cancelled_is_done_to_its_end() -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    done: list[str] = []

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(TIMEOUT_SECONDS)
        done.append("all of it")

    async with asyncio.timeout(TIMEOUT_SECONDS):
        waiting = asyncio.create_task(in_thread(work))
        await begun.wait()
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        await asyncio.wait([waiting])

    assert (waiting.cancelled(), done) == (True, ["all of it"])


async def test_work_that_is_held_up_holds_up_no_other() -> None:
    go_on = threading.Event()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        held_up = [asyncio.create_task(in_thread(lambda: go_on.wait(TIMEOUT_SECONDS))) for _ in range(8)]
        other = await in_thread(lambda: "done")
        go_on.set()

        assert (other, await asyncio.gather(*held_up)) == ("done", [True] * 8)


async def test_without_another_thread_nothing_is_begun_but_what_must_be_done() -> None:
    go_on = threading.Event()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        busy = [asyncio.create_task(in_thread(lambda: go_on.wait(TIMEOUT_SECONDS))) for _ in range(8)]
        await asyncio.sleep(0)
        usual = threading.stack_size(1 << 47)  # larger than the address space
        try:
            with pytest.raises(CommandNotStarted) as refused:
                await in_thread(lambda: "done")
            done = await in_thread(lambda: "done", needs_one=False)
        finally:
            threading.stack_size(usual)
            go_on.set()
        await asyncio.gather(*busy)

    assert (refused.value.detail, done) == ("the server cannot start more threads", "done")


async def test_required_work_runs_without_a_thread_if_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_none(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("parley.sandbox.threads._idle", [])
    monkeypatch.setattr("parley.sandbox.threads.start_thread", start_none)

    with pytest.raises(CommandNotStarted):
        await in_thread(lambda: "done")
    assert await in_thread(lambda: "done", needs_one=False) == "done"
