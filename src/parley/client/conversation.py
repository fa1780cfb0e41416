"""The client's handle for one conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar, Unpack
from uuid import uuid4

import msgspec
from msgspec import UnsetType

from parley.client.connection import Connection
from parley.client.errors import UnreadableResult
from parley.client.feeds import Feeds
from parley.client.options import SendOptions
from parley.client.stream import Stream
from parley.client.turn import Turn
from parley.client.turn_result import Event
from parley.wire.events import decode_event
from parley.wire.ids import START, ConversationId, MessageId, Seq
from parley.wire.items import InputItem, TextItem
from parley.wire.tools import (
    ConversationForked,
    ConversationReadResult,
    ConversationStatusResult,
    MessageAccepted,
    OpenText,
    PhaseName,
    PlainOk,
    QueueListResult,
)

__all__ = ["Conversation", "EventPage", "ReadEvent"]

T = TypeVar("T")


class ReadEvent(NamedTuple):
    seq: Seq
    msg: Event
    offset: int | None = None
    """The offset, in bytes, at which the event's piece of command output begins in the whole output; None if the
    event contains no command output.
    """
    at: str | None = None
    """The time at which the event was stored, in ISO 8601 format; None if `read` was called without `times`."""


class EventPage(NamedTuple):
    """A page of events that `read` returns."""

    events: tuple[ReadEvent, ...]
    open: tuple[OpenText, ...]
    """The text of items that are still being streamed; empty except on the last page."""
    seq: Seq
    """The position after which the next page begins."""
    state: PhaseName
    before: Seq | None = None
    """The argument `before` for reading the previous page; None if there are no earlier events, or if `read` was
    called without `before`.
    """


class Conversation:
    """A handle for a conversation on the server.

    Every call accepts `timeout_seconds`. Every call raises `ToolFailed` if its tool fails, `CallTimedOut` if no
    result arrives in time, and `Disconnected` if the connection to the server has ended.
    """

    def __init__(
        self, connection: Connection, feeds: Feeds, conversation_id: ConversationId, model: str | None = None
    ) -> None:
        self.id = conversation_id
        self.model = model
        """The model that the server chose, if this handle is the result of `Client.create`; otherwise None."""
        self._connection, self._feeds = connection, feeds
        self._feed = feeds.feed(conversation_id)

    async def send(
        self,
        content: str | Iterable[InputItem],
        *,
        message_id: str | None = None,
        timeout_seconds: float | None = None,
        **overrides: Unpack[SendOptions],
    ) -> Turn:
        """Send a message and wait until the server has accepted it. Return the turn that the message begins or
        joins.

        The turn runs even if no client reads its events. If a message is sent again with the same `message_id`, the
        server accepts it only once.
        """
        items = _items(content)
        if message_id is not None:
            after = START  # the server may have accepted the message earlier
        elif self._feed.seq is None:
            after = (await self.status(timeout_seconds=timeout_seconds)).seq
        else:
            after = self._feed.seq
        own_id = str(uuid4()) if message_id is None else message_id
        arguments = {"content": items, "message_id": own_id, **overrides}
        accepted = await self._connection.call_typed(
            "conversationSendMessage",
            {"conversation_id": self.id, **arguments},
            MessageAccepted,
            timeout_seconds,
            is_repeatable=True,  # the id makes the call idempotent
        )
        confirmed = accepted.message_id
        # A server that does not return the id sends no `user_message` events either.
        if isinstance(confirmed, UnsetType):
            return Turn(self._feed, MessageId(own_id), after=after, is_followable=False)
        return Turn(self._feed, confirmed, after=after, is_followable=True, is_queued=accepted.queued is True)

    def stream(
        self,
        *,
        after: int | None = None,
        last: int | None = None,
        exclusive: bool = False,
        timeout_seconds: float | None = None,
    ) -> Stream:
        """Return a stream of the conversation: `async with conversation.stream() as stream`.

        If `after` is given, the stream begins after that position instead of at the first event. If `last` is
        given, the stream begins with at most that number of the latest events; `read(before=stream.seq + 1)` then
        returns earlier events. If `exclusive` is True, the streams of all other clients end; other streams of this
        client continue. Closing a stream does not affect the turn, and a later stream can continue from the same
        position.
        """
        return Stream(self._feed, after=after, last=last, exclusive=exclusive, timeout_seconds=timeout_seconds)

    async def read(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        wait_seconds: float | None = None,
        times: bool = False,
        timeout_seconds: float | None = None,
    ) -> EventPage:
        """Read a page of at most `limit` events after the position `after`, without a stream. If there are no such
        events yet, wait up to `wait_seconds` for the next event, and return an empty page if none arrives.

        If `before` is given, read the last events before that position. If that position is beyond the end of the
        conversation, read the last events of the conversation. If `times` is True, each event has the time at which
        it was stored.
        """
        given = {
            "after": after,
            "before": before,
            "limit": limit,
            "wait_seconds": wait_seconds,
            "times": times or None,
        }
        arguments = {name: value for name, value in given.items() if value is not None}
        found = await self._read("conversationRead", ConversationReadResult, timeout_seconds, **arguments)
        if before is None:
            self._feed.note(found.seq)
        try:
            events = tuple(
                ReadEvent(
                    one.seq,
                    decode_event(one.msg),
                    None if isinstance(one.offset, UnsetType) else one.offset,
                    None if isinstance(one.at, UnsetType) else one.at,
                )
                for one in found.events
            )
        except msgspec.DecodeError as error:
            raise UnreadableResult("conversationRead", str(error)) from None
        earlier = None if isinstance(found.before, UnsetType) else found.before
        return EventPage(events, found.open, found.seq, found.state, earlier)

    async def mark_read(self, seq: int, *, timeout_seconds: float | None = None) -> None:
        """Record that the principal of this client has read the conversation up to the position `seq`. A position
        before the recorded position has no effect.
        """
        await self._read("conversationMarkRead", PlainOk, timeout_seconds, seq=seq)

    async def status(self, *, timeout_seconds: float | None = None) -> ConversationStatusResult:
        found = await self._read("conversationStatus", ConversationStatusResult, timeout_seconds)
        self._feed.note(found.seq)
        return found

    async def interrupt(self, *, timeout_seconds: float | None = None) -> None:
        """Interrupt the running turn. Do nothing if no turn is running."""
        await self._call("conversationInterrupt", PlainOk, timeout_seconds)

    async def continue_turn(self, *, timeout_seconds: float | None = None) -> None:
        """Begin a turn that continues an interrupted or failed turn, without a new message. The call fails while a
        turn is running, or if the last turn was completed.
        """
        await self._call("conversationContinue", PlainOk, timeout_seconds)

    async def compact(self, *, timeout_seconds: float | None = None) -> None:
        """Begin a turn that replaces the history, as the model sees it, with a summary. The call fails while a turn
        is running, or if there is nothing to summarize.
        """
        await self._call("conversationCompact", PlainOk, timeout_seconds)

    async def queue(self, *, timeout_seconds: float | None = None) -> QueueListResult:
        """Return the messages in the queue, in order, and whether the queue is paused."""
        return await self._read("queueList", QueueListResult, timeout_seconds)

    async def edit_queued(
        self, message_id: str, content: str | Iterable[InputItem], *, timeout_seconds: float | None = None
    ) -> None:
        """Replace the content of a queued message. The call fails if the message is no longer in the queue."""
        await self._call("queueEdit", PlainOk, timeout_seconds, message_id=message_id, content=_items(content))

    async def remove_queued(self, message_id: str, *, timeout_seconds: float | None = None) -> None:
        """Remove a queued message. The call fails if the message is no longer in the queue."""
        await self._call("queueRemove", PlainOk, timeout_seconds, message_id=message_id)

    async def resume_queue(self, *, timeout_seconds: float | None = None) -> None:
        """Resume the queue if it is paused, so that its next message begins a turn. Do nothing if the queue is not
        paused.
        """
        await self._call("queueResume", PlainOk, timeout_seconds)

    async def rename(self, title: str, *, timeout_seconds: float | None = None) -> None:
        """Set the title of the conversation."""
        await self._call("conversationRename", PlainOk, timeout_seconds, title=title)

    async def archive(self, *, archived: bool = True, timeout_seconds: float | None = None) -> None:
        """Remove the conversation from the default list of conversations. With `archived=False`, restore it to this
        list.
        """
        await self._call("conversationArchive", PlainOk, timeout_seconds, archived=archived)

    async def delete(self, *, timeout_seconds: float | None = None) -> None:
        """Delete the conversation permanently. The call fails while a turn is running."""
        await self._call("conversationDelete", PlainOk, timeout_seconds)

    async def fork(self, *, at_message_id: str | None = None, timeout_seconds: float | None = None) -> Conversation:
        """Create a conversation with a copy of this conversation's history, and return a handle for the new
        conversation.

        The copy ends with the turn of the message `at_message_id`, or with the last turn if `at_message_id` is
        None.
        """
        arguments = {} if at_message_id is None else {"at_message_id": at_message_id}
        forked = await self._call("conversationFork", ConversationForked, timeout_seconds, **arguments)
        return Conversation(self._connection, self._feeds, forked.conversation_id)

    async def _call(self, tool: str, kind: type[T], timeout_seconds: float | None = None, **arguments: object) -> T:
        return await self._connection.call_typed(
            tool, {"conversation_id": self.id, **arguments}, kind, timeout_seconds
        )

    async def _read(self, tool: str, kind: type[T], timeout_seconds: float | None, **arguments: object) -> T:
        """Call a tool and return its typed result. If the connection is lost, repeat the call. Calling the tool
        twice must have the same effect as calling it once.
        """
        return await self._connection.call_typed(
            tool, {"conversation_id": self.id, **arguments}, kind, timeout_seconds, is_repeatable=True
        )


def _items(content: str | Iterable[InputItem]) -> tuple[InputItem, ...]:
    return (TextItem(text=content),) if isinstance(content, str) else tuple(content)
