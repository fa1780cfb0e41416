"""Sends the progress notifications of one `codex` or `codex-reply` call.

Clients at protocol version 2025-11-25 or newer must not get a progress notification together with the result of the
call or after it. These clients discard the progress token when they read the result, and treat a later notification
as an error. Therefore, the server sends the notification for an event one second after the event, and discards the
notification if the call ends within this second. Older clients get a notification for each event immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from parley.ports.outbox import Outbox
from parley.wire.jsonrpc import RequestId, encode, notification
from parley.wire.mcp import Progress

__all__ = ["ProgressReporter"]

HEARTBEAT_SECONDS: Final = 5.0
"""The maximum time between two progress notifications, in seconds. The time is short because some clients give up
after 30 seconds without a notification.
"""
DELAY_SECONDS: Final = 1.0
"""The time in seconds between an event and its progress notification, for clients at protocol version 2025-11-25 or
newer. One notification reports all events that occur during this time.
"""


class ProgressReporter:
    """Sends progress notifications for one call, if the client supplied a progress token."""

    def __init__(self, out: Outbox, token: RequestId | None, *, delayed: bool) -> None:
        """Create the reporter. `token` is the progress token; None if the client supplied none. If `delayed` is
        True, the notification for an event is sent `DELAY_SECONDS` after the event, otherwise immediately.
        `delayed` must be True for clients at protocol version 2025-11-25 or newer.
        """
        self._out, self._token, self._delayed = out, token, delayed
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._message = ""
        self._heartbeat: asyncio.TimerHandle | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._in_this_tick = False
        self._stopped = False

    def begin(self) -> None:
        """Begin to send a progress notification at least every `HEARTBEAT_SECONDS`."""
        if self._token is not None and not self._stopped:
            self._heartbeat = self._loop.call_later(HEARTBEAT_SECONDS, self._send_heartbeat)

    def event(self, kind: str) -> None:
        """Schedule a progress notification, because an event of the type `kind` was sent to the client."""
        if self._token is None or self._stopped:
            return
        self._count += 1
        self._message = kind
        if not self._delayed:
            self._send()
        elif self._waiting is None:
            self._waiting = self._loop.call_later(DELAY_SECONDS, self._send)

    def stop(self) -> None:
        """Stop sending notifications."""
        self._stopped = True
        for timer in (self._heartbeat, self._waiting):
            if timer is not None:
                timer.cancel()

    def before_result(self, send_result: Callable[[], None]) -> None:
        """Stop sending notifications, and then call `send_result`, which sends the result of the call.

        Messages that are sent in one iteration of the event loop are written together. If the client gets delayed
        notifications, the result must not be written together with a notification. Therefore, if a notification was
        sent in this iteration, `send_result` is called in the next iteration.
        """
        self.stop()
        if self._delayed and self._in_this_tick:
            self._loop.call_soon(send_result)
        else:
            send_result()

    def _send(self) -> None:
        assert self._token is not None
        self._waiting = None
        progress = Progress(progress_token=self._token, progress=self._count, message=self._message)
        self._in_this_tick = True
        self._out.send(notification(Progress.METHOD, encode(progress)))
        self._loop.call_soon(self._end_tick)  # this callback runs after the write that the outbox has scheduled

    def _end_tick(self) -> None:
        self._in_this_tick = False

    def _send_heartbeat(self) -> None:
        if self._out.writable:
            self._count += 1
            self._message = "working"
            if self._waiting is not None:
                self._waiting.cancel()
            self._send()
        self.begin()
