"""Work that must not be left half done: what those who wait for it are told."""

from __future__ import annotations

import asyncio
import logging

import pytest

from parley.tools.to_the_end import to_the_end

PATIENCE_SECONDS = 10


@pytest.fixture
async def work() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


async def cancelled_meanwhile(work: asyncio.Future[str]) -> asyncio.Task[str]:
    """Somebody who waits for the work and was cancelled, several times."""
    waiting = asyncio.create_task(to_the_end(work))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not work.cancelled()
    return waiting


async def test_what_came_of_the_work_is_returned(work: asyncio.Future[str]) -> None:
    work.set_result("done")

    assert await to_the_end(work) == "done"


async def test_what_went_wrong_is_raised(work: asyncio.Future[str]) -> None:
    work.set_exception(ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        await to_the_end(work)


async def test_a_cancellation_is_raised_when_the_work_is_done(work: asyncio.Future[str]) -> None:
    waiting = await cancelled_meanwhile(work)

    work.set_result("done")

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_a_mistake_besides_a_cancellation_is_logged(
    work: asyncio.Future[str], caplog: pytest.LogCaptureFixture
) -> None:
    waiting = await cancelled_meanwhile(work)

    work.set_exception(ZeroDivisionError("by nothing"))

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait([waiting])
    assert waiting.cancelled()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
