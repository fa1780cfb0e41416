"""The turn that a message started or joined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from msgspec import UnsetType

from parley.client.errors import CallTimedOut, TurnFailed, TurnNotFollowable
from parley.client.feeds import Feed, Reader, StreamEvent
from parley.client.turn_result import Event, TurnResult, TurnSummary
from parley.wire.events import TaskStarted, UserMessage
from parley.wire.ids import MessageId, Seq

__all__ = ["Turn", "result_of"]


class Turn:
    """The turn that a message started or joined.

    Each iteration yields all events of the turn from the first event, even if the turn has already ended. A turn
    can be iterated several times. Without an iteration, the turn needs no stream and no memory in this client.
    """

    def __init__(
        self, feed: Feed, message_id: MessageId, *, after: Seq, is_followable: bool, is_queued: bool = False
    ) -> None:
        self.message_id = message_id
        self.is_queued = is_queued
        """True if the message was waiting in the queue when the server accepted it."""
        self._feed, self._after, self._is_followable = feed, after, is_followable
        self._summary: TurnSummary | None = None

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield the events of the turn up to its end, even if the turn fails.

        Raises:
            StreamEnded: the server ended the stream before the end of the turn.
            ToolFailed: the conversation does not exist any more.
            TurnNotFollowable: the server does not report which turn a message belongs to.
            Disconnected: the connection to the server has ended.
        """
        async with aclosing(self.detailed()) as events:
            async for event in events:
                yield event.msg

    async def detailed(self) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of the turn with their positions."""
        if not self._is_followable:
            raise TurnNotFollowable
        reader = Reader(self._after)
        await self._feed.join(reader, only_newer=True)
        try:
            before: StreamEvent | None = None
            while not self._begins(event := await _next(reader)):
                before = event
            if before is not None and isinstance(before.msg, TaskStarted):  # the message started the turn
                yield before
            summary = TurnSummary()
            while not summary.add(event.msg):
                yield event
                event = await _next(reader)
            self._summary = summary
            yield event
        finally:
            self._feed.leave(reader)

    def _begins(self, event: StreamEvent) -> bool:
        return isinstance(event.msg, UserMessage) and event.msg.message_id == self.message_id

    async def result(self, *, timeout_seconds: float | None = None) -> TurnResult:
        """Wait for the end of the turn and return its result.

        Raises:
            TurnFailed: the turn failed or was interrupted.
            CallTimedOut: the turn did not end in time. The turn continues on the server.
            StreamEnded, ToolFailed, TurnNotFollowable, Disconnected: as for an iteration over the turn.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                if self._summary is None:
                    async for _ in self:
                        pass
        except TimeoutError:
            raise CallTimedOut("the turn", timeout_seconds or 0) from None
        assert self._summary is not None
        return result_of(self._summary)


async def _next(reader: Reader) -> StreamEvent:
    event = reader.unread.popleft() if reader.unread else await reader.next()
    if event is None:
        raise reader.ended_early()
    return event


def result_of(summary: TurnSummary) -> TurnResult:
    """Return the result of a turn that has ended.

    Raises:
        TurnFailed: the turn failed or was interrupted.
    """
    result, error = summary.result(), summary.error
    if error is None:
        return result
    raise TurnFailed(error.message, result, code=None if isinstance(error.code, UnsetType) else error.code)
