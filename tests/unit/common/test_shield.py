"""Work that must complete even if the caller is cancelled."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.common.shield import run_to_completion


@pytest.fixture
async def work() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


async def cancelled_meanwhile(work: asyncio.Future[str]) -> asyncio.Task[str]:
    """Return a task that waits for the work and was cancelled several times."""
    waiting = asyncio.create_task(run_to_completion(work))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not work.cancelled()
    return waiting


async def test_the_result_of_the_work_is_returned(work: asyncio.Future[str]) -> None:
    work.set_result("done")

    assert await run_to_completion(work) == "done"


async def test_a_failure_of_the_work_is_raised(work: asyncio.Future[str]) -> None:
    work.set_exception(ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        await run_to_completion(work)


async def test_a_cancellation_is_raised_when_the_work_is_done(work: asyncio.Future[str]) -> None:
    waiting = await cancelled_meanwhile(work)

    work.set_result("done")

    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_a_failure_after_a_cancellation_is_logged(
    work: asyncio.Future[str], caplog: pytest.LogCaptureFixture
) -> None:
    waiting = await cancelled_meanwhile(work)

    work.set_exception(ZeroDivisionError("by nothing"))

    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asyncio.wait([waiting])
    assert waiting.cancelled()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
