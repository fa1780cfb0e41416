"""A conversation as it is watched: all that happened, then all that happens.

A stream keeps what arrived until it is read, however much that is; whoever stops reading
should close it, and open another `after` the last position it saw.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import Final, TypeAlias

from msgspec import Raw, Struct, UnsetType

from parley.client.connection import Connection, typed_value
from parley.client.errors import Disconnected, StreamEnded, ToolFailed, TurnFailed
from parley.wire.events import AgentMessage, ErrorEvent, EventMsg, TaskComplete, UnknownEvent, decode_event
from parley.wire.ids import START, ConversationId, Seq
from parley.wire.notifications import EventMeta, InitialState
from parley.wire.tools import StreamStarted

__all__ = ["Event", "Seen", "Stream", "ends_turn"]

Event: TypeAlias = EventMsg | UnknownEvent

TOOL: Final = "conversationStream"

INTERRUPTED: Final = "Turn interrupted"
"""Stands in the `error` of every turn that ended by an interrupt, a stop or a restart."""


class Seen(Struct, frozen=True):
    """An event, with what the stream says about it."""

    msg: Event
    meta: EventMeta | None
    """Where it stands; None where the server was not asked to say."""
    live: bool
    """False for what had happened before the stream was opened."""


def ends_turn(event: Event) -> bool:
    """Whether a turn is over with this event; after a failure its `task_complete` is still to come."""
    return isinstance(event, TaskComplete) or (isinstance(event, ErrorEvent) and INTERRUPTED in event.message)


def failure_of(events: Sequence[Event]) -> str | None:
    """Return why the turn that ends with these events failed, or None if it succeeded.

    An `error` earlier in the turn is that of a tool server that could not be started; the turn goes on.
    """
    last = events[-2:] if isinstance(events[-1], TaskComplete) else events[-1:]
    return last[0].message if isinstance(last[0], ErrorEvent) else None


class Stream:
    """One `conversationStream`. Opened by `async with`, or by `await` and closed by `close()`.

    Iterating, `detailed`, `text` and `turn` all read on from the same place: the events of the
    snapshot first, then the live ones. The iteration ends when the stream does.
    """

    def __init__(
        self,
        connection: Connection,
        conversation_id: ConversationId,
        *,
        after: int | None,
        event_meta: bool | None,
        on_open: Callable[[Stream], None],
        on_close: Callable[[Stream], None],
    ) -> None:
        self.conversation_id = conversation_id
        self.snapshot: list[Event] = []
        """What had happened when the stream was opened."""
        self.seq = START if after is None else Seq(after)
        """The last position seen: that of the snapshot, then of each live event that was read."""
        self.disconnected: str | None = None
        """Why the server ended the stream, if it did."""
        self.closed = False
        """Nothing more will arrive."""
        self._connection = connection
        self._arguments = {
            name: value
            for name, value in (("conversation_id", conversation_id), ("after", after), ("event_meta", event_meta))
            if value is not None
        }
        self._on_open, self._on_close = on_open, on_close
        self._request_id: int | str | None = None
        self._unread: deque[Seen] = deque()
        self._changed = asyncio.Event()
        self._has_snapshot = False
        self._gone: Disconnected | None = None

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
        """Ask for the stream and wait for its snapshot.

        Raises:
            ToolFailed: there is no such conversation, or no such position.
            StreamEnded: the server ended it before it began.
            Disconnected: the server is gone.
        """
        call = self._connection.call_tool(TOOL, self._arguments, on_result=self._answered)
        self._request_id = call.request_id
        try:
            typed_value(TOOL, await call.result, StreamStarted)
            while not self._has_snapshot:
                if self.closed:
                    raise self._gone or StreamEnded(self.disconnected)
                await self._wait()
        except BaseException:
            await self.close()
            raise
        return self

    def _answered(self, result: Raw) -> None:
        try:
            typed_value(TOOL, result, StreamStarted)
        except ToolFailed:
            return  # whoever opens the stream is told
        self._on_open(self)

    async def close(self) -> None:
        """End the stream; the turn goes on. What had arrived can still be read."""
        if not self.closed:
            self._finish()
            if self._request_id is not None:
                self._connection.cancel(self._request_id)
            self._on_close(self)

    # --- reading -------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        seen = await self._next()
        if seen is None:
            raise StopAsyncIteration
        return seen.msg

    async def detailed(self) -> AsyncIterator[Seen]:
        """The same events, each with its place."""
        while (seen := await self._next()) is not None:
            yield seen

    async def turn(self) -> list[Event]:
        """All events up to and including the end of the next turn.

        Raises:
            StreamEnded: the stream ended first.
            Disconnected: the server is gone.
        """
        events: list[Event] = []
        async for event in self:
            events.append(event)
            if ends_turn(event):
                return events
        raise StreamEnded(self.disconnected)

    async def text(self) -> str:
        """Return what the agent says until the next turn ends; several messages are joined by line ends.

        Raises:
            TurnFailed: the turn ended with an error or was interrupted.
            StreamEnded: the stream ended first.
            Disconnected: the server is gone.
        """
        events = await self.turn()
        text = "\n".join(event.message for event in events if isinstance(event, AgentMessage))
        if (failure := failure_of(events)) is not None:
            raise TurnFailed(failure, text)
        return text

    async def _next(self) -> Seen | None:
        while not self._unread:
            if self._gone is not None:
                raise self._gone
            if self.closed:
                return None
            await self._wait()
        seen = self._unread.popleft()
        if seen.live and seen.meta is not None and not isinstance(seen.meta.seq, UnsetType):
            self.seq = seen.meta.seq
        return seen

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # --- what arrives --------------------------------------------------------------------

    def take_snapshot(self, state: InitialState) -> None:
        for one in state.initial_state.events:
            event = decode_event(one.msg)
            self.snapshot.append(event)
            self._unread.append(Seen(event, None if isinstance(one.meta, UnsetType) else one.meta, live=False))
        if not isinstance(state.meta.seq, UnsetType):
            self.seq = state.meta.seq
        self._has_snapshot = True
        self._changed.set()

    def take(self, seen: Seen) -> None:
        self._unread.append(seen)
        self._changed.set()

    def take_end(self, reason: str) -> None:
        self.disconnected = reason
        self._finish()

    def take_loss(self, error: Disconnected) -> None:
        """The server is gone, which is an error to whoever reads beyond what arrived."""
        if not self.closed:
            self._gone = error
            self._finish()

    def _finish(self) -> None:
        self.closed = True
        self._changed.set()
