"""One conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar, Unpack
from uuid import uuid4

from msgspec import UnsetType

from parley.client.connection import Connection
from parley.client.feeds import Feeds
from parley.client.options import Overrides
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
)

__all__ = ["Conversation", "EventPage", "ReadEvent"]

T = TypeVar("T")


class ReadEvent(NamedTuple):
    seq: Seq
    msg: Event
    offset: int | None = None
    """The offset of a piece of a command's output, in bytes; None for other events."""


class EventPage(NamedTuple):
    """The events that `read` returns."""

    events: tuple[ReadEvent, ...]
    open: tuple[OpenText, ...]
    """Texts that are still being written; only on the last page."""
    seq: Seq
    """The position to continue from."""
    state: PhaseName


class Conversation:
    """A handle of a conversation on the server.

    Every call takes `timeout_seconds`. Every call raises `ToolFailed` if its tool fails, `CallTimedOut` if there is
    no result in time, and `Disconnected` if the server has ended.
    """

    def __init__(
        self, connection: Connection, feeds: Feeds, conversation_id: ConversationId, model: str | None = None
    ) -> None:
        self.id = conversation_id
        self.model = model
        """The effective model, if this client created the conversation; else None."""
        self._connection, self._feeds = connection, feeds
        self._feed = feeds.feed(conversation_id)

    async def send(
        self,
        content: str | Iterable[InputItem],
        *,
        message_id: str | None = None,
        timeout_seconds: float | None = None,
        **overrides: Unpack[Overrides],
    ) -> Turn:
        """Send a message and return its turn when the server has accepted the message.

        The turn runs whether or not it is read. A message can be sent again with the same `message_id`; the server
        runs it once.
        """
        items = (TextItem(text=content),) if isinstance(content, str) else tuple(content)
        if message_id is not None:
            after = START  # the message may have been accepted before
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
            is_repeatable=True,  # because of the id
        )
        confirmed = accepted.message_id
        # A server that does not return the id sends no `user_message` events either.
        if isinstance(confirmed, UnsetType):
            return Turn(self._feed, MessageId(own_id), after=after, is_followable=False)
        return Turn(self._feed, confirmed, after=after, is_followable=True)

    def stream(self, *, after: int | None = None, timeout_seconds: float | None = None) -> Stream:
        """Return a stream of the conversation: `async with conversation.stream() as stream`.

        With `after`, the stream begins after that position. Closing a stream is a pause: the turn goes on, and the
        next stream shows what happened meanwhile.
        """
        return Stream(self._feed, after=after, timeout_seconds=timeout_seconds)

    async def read(
        self,
        *,
        after: int | None = None,
        limit: int | None = None,
        wait_seconds: float | None = None,
        timeout_seconds: float | None = None,
    ) -> EventPage:
        """Read a page of events without a stream. If there are none, wait up to `wait_seconds` for the next."""
        arguments = {
            name: value
            for name, value in (("after", after), ("limit", limit), ("wait_seconds", wait_seconds))
            if value is not None
        }
        found = await self._read("conversationRead", ConversationReadResult, timeout_seconds, **arguments)
        self._feed.note(found.seq)
        events = tuple(
            ReadEvent(one.seq, decode_event(one.msg), None if isinstance(one.offset, UnsetType) else one.offset)
            for one in found.events
        )
        return EventPage(events, found.open, found.seq, found.state)

    async def status(self, *, timeout_seconds: float | None = None) -> ConversationStatusResult:
        found = await self._read("conversationStatus", ConversationStatusResult, timeout_seconds)
        self._feed.note(found.seq)
        return found

    async def interrupt(self, *, timeout_seconds: float | None = None) -> None:
        """Interrupt the running turn, if there is one."""
        await self._call("conversationInterrupt", PlainOk, timeout_seconds)

    async def continue_turn(self, *, timeout_seconds: float | None = None) -> None:
        """Continue after a turn that was interrupted or failed, without a new message."""
        await self._call("conversationContinue", PlainOk, timeout_seconds)

    async def rename(self, title: str, *, timeout_seconds: float | None = None) -> None:
        """Set the title."""
        await self._call("conversationRename", PlainOk, timeout_seconds, title=title)

    async def archive(self, *, archived: bool = True, timeout_seconds: float | None = None) -> None:
        """Remove the conversation from the list, or with `archived=False` add it again."""
        await self._call("conversationArchive", PlainOk, timeout_seconds, archived=archived)

    async def delete(self, *, timeout_seconds: float | None = None) -> None:
        """Delete the conversation permanently; fails while a turn runs."""
        await self._call("conversationDelete", PlainOk, timeout_seconds)

    async def fork(self, *, at_message_id: str | None = None, timeout_seconds: float | None = None) -> Conversation:
        """Create a conversation with the history of this one, up to and including the turn of a message."""
        arguments = {} if at_message_id is None else {"at_message_id": at_message_id}
        forked = await self._call("conversationFork", ConversationForked, timeout_seconds, **arguments)
        return Conversation(self._connection, self._feeds, forked.conversation_id)

    async def _call(self, tool: str, kind: type[T], timeout_seconds: float | None = None, **arguments: object) -> T:
        return await self._connection.call_typed(
            tool, {"conversation_id": self.id, **arguments}, kind, timeout_seconds
        )

    async def _read(self, tool: str, kind: type[T], timeout_seconds: float | None, **arguments: object) -> T:
        """Make a call that changes nothing. If the connection was lost, make it again."""
        return await self._connection.call_typed(
            tool, {"conversation_id": self.id, **arguments}, kind, timeout_seconds, is_repeatable=True
        )
