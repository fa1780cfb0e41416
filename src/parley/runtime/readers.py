"""Readers. Each reader sends the entries and deltas of one log to one client, beginning at the cursor of the
reader.

A reader that keeps up sends each delta immediately, without a task, a queue or a copy. If the client does not read
from its connection, the reader stays at its position and uses no CPU time. When the outbox of the connection is
writable again, the reader sends all entries and deltas that the client lacks, and merges the deltas of each open
item.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from parley.common.os_errors import OUT_OF_MEMORY
from parley.conversation.log import Cursor, Delta, Earlier, Entry, LogView, encode_piece
from parley.conversation.output import OutputDelta
from parley.ports.outbox import Outbox
from parley.wire.ids import Seq

__all__ = ["EventEncoder", "Reader"]

log = logging.getLogger(__name__)

STEPS_PER_ROUND: Final = 512
"""The maximum number of entries and deltas that one reader sends before the other readers of the same connection
can send.
"""


ReadEarlier = Callable[[Seq], Awaitable[Sequence[Entry]]]
"""A function that reads a page of the entries after the given position from the store."""


class EventEncoder(Protocol):
    """Encodes entries and deltas as messages for one client. The methods call their argument `send` once for each
    message.
    """

    hidden: frozenset[str]
    """The event types that this client does not get."""
    sends_records: bool
    """True if the client gets records as well as events."""

    def entry(self, entry: Entry, send: Callable[[bytes], None]) -> None:
        """Encode one entry, and pass each of its messages to `send`."""
        ...

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Callable[[bytes], None]) -> None:
        """Pass a message with one delta to `send`. `encoded` is the delta in its encoded form as an event."""
        ...


def _do_nothing(error: Exception) -> None: ...


class Reader:
    """Sends the entries and deltas of one log to one client."""

    __slots__ = (
        "_closed",
        "_cursor",
        "_earlier",
        "_encoder",
        "_log",
        "_on_dropped",
        "_out",
        "_passed",
        "_reading",
        "_send",
        "_waiting",
    )

    def __init__(
        self,
        log: LogView,
        cursor: Cursor,
        out: Outbox,
        encoder: EventEncoder,
        *,
        passed: Callable[[Entry], None] | None = None,
        on_dropped: Callable[[Exception], None] = _do_nothing,
        earlier: ReadEarlier | None = None,
    ) -> None:
        """Create a reader.

        `passed` is called with each entry in order, after the entry has been sent or skipped because the client
        does not see it. `on_dropped` is called with the error if an entry cannot be sent or read. The reader then
        stops sending. `earlier` reads entries that are not in memory.
        """
        self._earlier = earlier
        self._reading: asyncio.Task[None] | None = None
        self._on_dropped = on_dropped
        self._log, self._cursor, self._out, self._encoder = log, cursor, out, encoder
        self._passed, self._send = passed, out.send
        self._waiting = False
        self._closed = False

    def close(self) -> None:
        """Stop sending, and remove the references to the callbacks.

        The callbacks refer to objects that refer to the reader. Removing these reference cycles lets reference
        counting free the reader and its conversation.
        """
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
        self._passed = self._earlier = None
        self._on_dropped = _do_nothing

    def drop(self, error: Exception) -> None:
        """Stop sending, and call `on_dropped` with `error`, the reason why an entry could not be sent or read."""
        on_dropped = self._on_dropped
        self.close()
        on_dropped(error)

    @property
    def position(self) -> Seq:
        """The position of the last entry that the reader has sent, or skipped because the client does not see
        it.
        """
        return self._cursor.seq

    @property
    def keeps_up(self) -> bool:
        """True if the next delta can be sent immediately: all earlier entries and deltas have been sent to the
        client, and its outbox is writable.
        """
        return self._cursor.live and self._out.writable

    def delta(self, delta: Delta | OutputDelta, encoded: bytes) -> None:
        """Send the newest delta of the log.

        If the outbox is not writable, only record that the client lacks the delta. `encoded` is the delta in its
        encoded form as an event. This is a hot path.
        """
        cursor = self._cursor
        if cursor.live:
            if self._out.writable:
                self._encoder.delta(delta, encoded, self._send)
            else:
                cursor.missed(self._log, delta)
                self._wait()

    def appended(self, first: Seq) -> None:
        """Record that the entries from the position `first` on were appended.

        The next call of `pump` sends those entries that are durable.
        """
        self._cursor.appended(self._log, first)

    def pump(self) -> None:
        """Send the durable entries and deltas that the client lacks. Stop when the outbox is full, or after
        `STEPS_PER_ROUND` entries and deltas, so that other readers of the connection can send. The reader continues
        when the outbox is writable.
        """
        out, encoder, send = self._out, self._encoder, self._send
        for _ in range(STEPS_PER_ROUND):
            if self._closed or self._reading is not None:
                return
            if not out.writable:
                break
            step = self._cursor.next(self._log)
            if step is None:
                return
            if isinstance(step, Earlier):
                self._reading = asyncio.get_running_loop().create_task(self._read_earlier())
                return
            if not isinstance(step, Entry):
                encoder.delta(step, encode_piece(step), send)
                continue
            if (step.is_event or encoder.sends_records) and step.type not in encoder.hidden:
                encoder.entry(step, send)
            if self._passed is not None:
                self._passed(step)
        self._wait()

    async def _read_earlier(self) -> None:
        """Read a page of entries that are not in memory, and continue sending."""
        try:
            if self._earlier is None:
                raise LookupError("this reader cannot read entries that are not in memory")
            page = await self._earlier(self._cursor.seq)
            if not page:
                raise LookupError(f"entry {self._cursor.seq + 1} is missing")
            self._cursor.supply(page)
        except Exception as error:  # without these entries, later entries would leave a gap
            log.error("a reader was dropped: %s", error)
            self._reading = None
            self.drop(error)
            return
        self._reading = None
        self._woken()

    def _wait(self) -> None:
        if not self._waiting and not self._closed:
            self._waiting = True
            self._out.when_writable(self._woken)

    def _woken(self) -> None:
        self._waiting = False
        try:
            self.pump()
        # the error is a bug, or memory is exhausted; the other readers of the connection continue
        except Exception as error:
            is_bug = not isinstance(error, MemoryError)
            log.error("a reader was dropped: %s", error if is_bug else OUT_OF_MEMORY, exc_info=is_bug)
            self.drop(error)
