"""A conversation as a stream of events: past events first, then live events.

A stream keeps events in memory until they are read. Close a stream that is no longer read, and later open another
stream `after` the last position that was read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from types import TracebackType

from msgspec import UnsetType

from parley.client.feeds import Feed, Reader, StreamEvent
from parley.client.turn import result_of
from parley.client.turn_result import Event, TurnSummary, ends_turn
from parley.wire.ids import START, ConversationId, Seq

__all__ = ["Stream"]


class Stream:
    """The events of a conversation. Open a stream with `async with`, or with `await` and a later `close()`.

    Iterating, `detailed`, `text` and `turn` all continue after the event that was read last. The events of the
    snapshot come first, then live events. The iteration ends when the stream ends.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        after: int | None,
        last: int | None = None,
        exclusive: bool = False,
        timeout_seconds: float | None,
    ) -> None:
        if after is not None and last is not None:
            raise TypeError("a stream takes only one of `after` and `last`")
        self.snapshot: list[Event] = []
        """The events of the stream that happened before the stream was opened."""
        self.seq = START if after is None else Seq(after)
        """The position of the last event that was read."""
        self._feed, self._reader = feed, Reader(self.seq, last=last, exclusive=exclusive)
        self._timeout_seconds = timeout_seconds

    @property
    def conversation_id(self) -> ConversationId:
        return self._feed.conversation_id

    @property
    def disconnected(self) -> str | None:
        """The reason why the server ended the stream; None if the server did not end it."""
        return self._reader.disconnected

    @property
    def disconnected_code(self) -> str | None:
        """The stable name of the reason in `disconnected`; None if there is no reason, or if the server sent no
        name.
        """
        return self._reader.disconnected_code

    @property
    def closed(self) -> bool:
        """True if no more events will arrive."""
        return self._reader.closed

    # --- opening and closing -------------------------------------------------------------

    def __await__(self) -> Generator[object, None, Stream]:
        return self._open().__await__()

    async def __aenter__(self) -> Stream:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> Stream:
        """Open the stream, wait for its snapshot, and return this object.

        Raises:
            ToolFailed: the conversation or the position does not exist.
            StreamEnded: the server ended the stream before its snapshot.
            CallTimedOut: no snapshot arrived in time.
            Disconnected: the connection to the server has ended.
        """
        await self._feed.join(self._reader, timeout_seconds=self._timeout_seconds)
        self.seq = self._reader.after
        self.snapshot = [event.msg for event in self._reader.unread if not event.live]
        return self

    async def close(self) -> None:
        """End the stream. A running turn continues. Events that have arrived can still be read."""
        self._feed.leave(self._reader)

    # --- reading -------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._next()
        if event is None:
            raise StopAsyncIteration
        return event.msg

    async def detailed(self) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of the stream with their positions."""
        while (event := await self._next()) is not None:
            yield event

    async def turn(self) -> list[Event]:
        """Return all events up to and including the end of the next turn.

        Raises:
            StreamEnded: the stream ended before the end of the next turn.
            Disconnected: the connection to the server has ended.
        """
        events: list[Event] = []
        async for event in self:
            events.append(event)
            if ends_turn(event):
                return events
        raise self._reader.ended_early()

    async def text(self) -> str:
        """Return the agent's messages up to the end of the next turn as a single string. Messages are joined with
        newlines.

        The next turn of a stream is the first turn that has not been read, which can be an old turn.
        `Conversation.send` returns the turn of a message.

        Raises:
            TurnFailed: the turn failed or was interrupted.
            StreamEnded: the stream ended before the end of the next turn.
            Disconnected: the connection to the server has ended.
        """
        summary = TurnSummary()
        for event in await self.turn():
            summary.add(event)
        return result_of(summary).text

    async def _next(self) -> StreamEvent | None:
        unread = self._reader.unread
        event = unread.popleft() if unread else await self._reader.next()
        if event is not None and not isinstance(event.meta.seq, UnsetType):
            self.seq = event.meta.seq
        return event
