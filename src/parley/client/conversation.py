"""One conversation, as a client handles it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar, Unpack

from msgspec import UnsetType

from parley.client.connection import Connection, typed_value
from parley.client.options import Overrides
from parley.client.stream import Event, Stream
from parley.client.streams import Streams
from parley.wire.events import decode_event
from parley.wire.ids import ConversationId, MessageId, Seq
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

__all__ = ["Conversation", "Page", "ReadEvent", "Sent"]

T = TypeVar("T")


class ReadEvent(NamedTuple):
    seq: Seq
    msg: Event
    offset: int | None = None
    """Of a piece of what a command said: where in its stream it begins, in bytes."""


class Page(NamedTuple):
    """What `read` found behind a position."""

    events: tuple[ReadEvent, ...]
    open: tuple[OpenText, ...]
    """Texts still being written; only on the last page."""
    seq: Seq
    """The position to read on from."""
    state: PhaseName


class Sent(NamedTuple):
    """A message that the server has accepted."""

    message_id: MessageId | None
    """The server's or our own; None where a server of the plain version does not tell."""


class Conversation:
    """A handle, cheap to make: the conversation itself is on the server.

    Every call raises `ToolFailed` when the tool behind it does, and `Disconnected` when the
    server is gone.
    """

    def __init__(
        self, connection: Connection, streams: Streams, conversation_id: ConversationId, model: str | None = None
    ) -> None:
        self.id = conversation_id
        self.model = model
        """The effective model, if this client created the conversation."""
        self._connection, self._streams = connection, streams

    async def send(
        self, content: str | Iterable[InputItem], *, message_id: str | None = None, **overrides: Unpack[Overrides]
    ) -> Sent:
        """Say something; the turn runs in the background, and `stream` shows it."""
        items = (TextItem(text=content),) if isinstance(content, str) else tuple(content)
        arguments = {"conversation_id": self.id, "content": items, **overrides}
        if message_id is not None:
            arguments["message_id"] = message_id
        tool = "conversationSendMessage"
        call = self._connection.call_tool(tool, arguments)
        accepted = typed_value(tool, await call.result, MessageAccepted)
        told = accepted.message_id
        known = (MessageId(message_id) if message_id else None) if isinstance(told, UnsetType) else told
        return Sent(known)

    def stream(self, *, after: int | None = None, event_meta: bool | None = None) -> Stream:
        """Watch the conversation: `async with conversation.stream() as stream`.

        With `after`, only what is newer than that position. Closing the stream is a pause: the
        turn goes on, and the next stream shows what happened meanwhile.
        """
        return Stream(
            self._connection,
            self.id,
            after=after,
            event_meta=event_meta,
            on_open=self._streams.open,
            on_close=self._streams.close,
        )

    async def read(
        self, *, after: int | None = None, limit: int | None = None, wait_seconds: float | None = None
    ) -> Page:
        """A page of events behind a position, without a stream; waits if there is none and it is told to."""
        arguments = {
            name: value
            for name, value in (("after", after), ("limit", limit), ("wait_seconds", wait_seconds))
            if value is not None
        }
        found = await self._call("conversationRead", ConversationReadResult, **arguments)
        events = tuple(
            ReadEvent(one.seq, decode_event(one.msg), None if isinstance(one.offset, UnsetType) else one.offset)
            for one in found.events
        )
        return Page(events, found.open, found.seq, found.state)

    async def status(self) -> ConversationStatusResult:
        return await self._call("conversationStatus", ConversationStatusResult)

    async def interrupt(self) -> None:
        """End the running turn, if there is one."""
        await self._call("conversationInterrupt", PlainOk)

    async def rename(self, title: str) -> None:
        """Give it a title."""
        await self._call("conversationRename", PlainOk, title=title)

    async def archive(self, *, archived: bool = True) -> None:
        """Take it out of the list, or put it back."""
        await self._call("conversationArchive", PlainOk, archived=archived)

    async def delete(self) -> None:
        """Remove it for ever; not while a turn runs."""
        await self._call("conversationDelete", PlainOk)

    async def fork(self, *, at_message_id: str | None = None) -> Conversation:
        """A new conversation with all that happened in this one, up to a message and its answer."""
        arguments = {} if at_message_id is None else {"at_message_id": at_message_id}
        forked = await self._call("conversationFork", ConversationForked, **arguments)
        return Conversation(self._connection, self._streams, forked.conversation_id)

    async def _call(self, tool: str, kind: type[T], **arguments: object) -> T:
        call = self._connection.call_tool(tool, {"conversation_id": self.id, **arguments})
        return typed_value(tool, await call.result, kind)
