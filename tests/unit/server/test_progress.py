"""Progress notifications for newer clients: none in the same write as the result, and none after the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kit.system.commands import TIMEOUT_SECONDS
from parley.server.progress import ProgressReporter
from parley.wire.jsonrpc import encode, notification
from parley.wire.mcp import Progress

RESULT = b"the result"


class Writes:
    """An outbox that records which frames are written together.

    These are the frames of one event loop iteration.
    """

    def __init__(self) -> None:
        self.writable = True
        self.writes: list[list[bytes]] = []
        self.on_send: Callable[[], None] = lambda: None
        self._open = False
        self.written = asyncio.Event()

    def send(self, frame: bytes) -> None:
        if not self._open:
            self._open = True
            self.writes.append([])
            asyncio.get_running_loop().call_soon(self._flush)
        self.writes[-1].append(frame)
        on_send, self.on_send = self.on_send, lambda: None
        on_send()

    def when_writable(self, wake: Callable[[], None]) -> None:
        raise NotImplementedError  # progress does not wait

    def _flush(self) -> None:
        self._open = False
        self.written.set()

    async def until_written(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            self.written.clear()
            await self.written.wait()


def progress(number: int, message: str) -> bytes:
    return notification(Progress.METHOD, encode(Progress(progress_token=7, progress=number, message=message)))


async def test_events_are_reported_together_after_a_moment() -> None:
    out = Writes()
    reporter = ProgressReporter(out, 7, delayed=True)
    for kind in ("task_started", "user_message"):
        reporter.event(kind)
    assert out.writes == []
    await out.until_written()
    reporter.event("agent_message")
    await out.until_written()
    reporter.stop()

    assert out.writes == [[progress(2, "user_message")], [progress(3, "agent_message")]]


async def test_a_delayed_notification_is_dropped_when_the_result_comes() -> None:
    out = Writes()
    reporter = ProgressReporter(out, 7, delayed=True)
    reporter.begin()
    reporter.event("task_complete")
    reporter.before_result(lambda: out.send(RESULT))
    reporter.event("late")
    reporter.begin()
    other = ProgressReporter(out, 7, delayed=True)  # its timer fires after the timers that must not fire
    other.event("after")
    await out.until_written()
    await out.until_written()

    assert out.writes == [[RESULT], [progress(1, "after")]]


async def test_a_result_in_the_tick_of_a_notification_leaves_in_a_write_of_its_own() -> None:
    out = Writes()
    reporter = ProgressReporter(out, 7, delayed=True)
    out.on_send = lambda: reporter.before_result(lambda: out.send(RESULT))
    reporter.event("user_message")
    await out.until_written()
    await out.until_written()

    assert out.writes == [[progress(1, "user_message")], [RESULT]]


async def test_older_clients_get_progress_at_each_event_at_once() -> None:
    out = Writes()
    reporter = ProgressReporter(out, 7, delayed=False)
    reporter.event("task_started")
    reporter.event("task_complete")
    reporter.before_result(lambda: out.send(RESULT))

    assert out.writes == [[progress(1, "task_started"), progress(2, "task_complete"), RESULT]]


async def test_without_a_token_nothing_is_sent() -> None:
    out = Writes()
    for delayed in (False, True):
        reporter = ProgressReporter(out, None, delayed=delayed)
        reporter.begin()
        reporter.event("task_started")
        reporter.before_result(lambda: out.send(RESULT))

    assert out.writes == [[RESULT, RESULT]]
