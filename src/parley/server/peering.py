"""Serves other processes that use the same store: sends them the entries of the conversations that this process
owns, and executes their requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from parley.conversation.log import Cursor, Delta, Entry
from parley.conversation.output import OutputDelta
from parley.errors import LeaseLost, NotOwned, OwnedElsewhere, ParleyError, ShuttingDown, StoreFailed
from parley.ports.outbox import Outbox
from parley.ports.store import CALL_SECONDS
from parley.runtime.conversation import Conversation, PeerRequest, PlacedRequest
from parley.runtime.deadline import Deadline
from parley.runtime.readers import Reader
from parley.runtime.recipients import ReadingClient
from parley.server.context import LOCAL_USER, RequestContext, ServerContext
from parley.server.dispatch import Call, Dispatch, Handler, Notice
from parley.server.errors import InvalidParams, PeerRefusal
from parley.server.hosts import FULL
from parley.server.outgoing_requests import OutgoingRequests
from parley.server.serve import Transport
from parley.wire.framing import Overlong
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import decode_message, encode, notification
from parley.wire.nodes import FIRST_VERSION
from parley.wire.peers import (
    NOT_OWNER,
    NOT_WRITTEN,
    REFUSED,
    Changed,
    CompactHistory,
    ContinueTurn,
    EditQueued,
    Enqueue,
    Follow,
    Followed,
    InterruptTurn,
    PeerDelta,
    PeerEntry,
    PeerOutput,
    PeerRead,
    PeerReleased,
    Place,
    RemoveQueued,
    RenameConversation,
    ResumeQueue,
    SettleApproval,
    Submit,
    TakeOver,
    Unfollow,
)

__all__ = ["PeerEncoder", "PeerTransport", "serve_peer"]

log = logging.getLogger(__name__)

Params = TypeVar("Params", bound=Struct)

PEER_SECONDS: Final = CALL_SECONDS - 1.0
"""The maximum time in seconds that a request from another process waits for the write lock of the store. The other
process waits `CALL_SECONDS` for the response. This time is shorter, so that the other process gets an error about
the lock before its own timeout expires.
"""

_REQUESTS: Final[tuple[type[PeerRequest], ...]] = (
    Submit,
    Enqueue,
    EditQueued,
    RemoveQueued,
    ResumeQueue,
    SettleApproval,
    InterruptTurn,
    RenameConversation,
)
_PLACED: Final[Mapping[str, type[PlacedRequest]]] = {
    kind.METHOD: kind for kind in (Submit, Enqueue, ResumeQueue, ContinueTurn, CompactHistory)
}
_NOT_OURS: Final = (OwnedElsewhere, NotOwned, LeaseLost, ShuttingDown)


class PeerTransport(Transport, Protocol):
    """The interface of a connection to another process."""

    def stop_reading(self) -> None:
        """Read no further messages."""
        ...


async def serve_peer(transport: PeerTransport, server: ServerContext, version: str = "") -> None:
    """Serve another process until it disconnects. The turns that this process runs continue after that.

    `version` is the version of the protocol between nodes; empty for a process that shares the home directory.
    """
    out = transport.outbox
    peer = _Peer(out, server)
    if version == FIRST_VERSION:
        del peer.requests[Place.METHOD]
    try:
        async with asyncio.TaskGroup() as tasks:
            dispatch = Dispatch(
                out,
                peer.requests,
                context=lambda reply, meta: RequestContext(principal=LOCAL_USER, features=FULL, reply=reply),
                own=OutgoingRequests(server.request_ids),
                tasks=tasks,
                notices=peer.notices,
            )
            await transport.read(partial(_take, transport, dispatch))
            dispatch.abandon()
    finally:
        peer.close()
        out.close()


def _take(transport: PeerTransport, dispatch: Dispatch, frame: bytes | Overlong) -> None:
    """Handle a message from the other process. If the message is invalid, stop reading, because later messages may
    depend on the invalid message. The connection is then closed.
    """
    try:
        if isinstance(frame, Overlong):
            raise msgspec.DecodeError(frame.why)
        decode_message(frame)
    except msgspec.DecodeError as error:
        log.warning("closed the connection of another process, which sent an invalid message: %s", error)
        transport.stop_reading()
    else:
        dispatch.take(frame)


class _Peer:
    """Sends the entries of conversations to one other process, and executes the requests from that process."""

    def __init__(self, out: Outbox, server: ServerContext) -> None:
        self._out, self._server = out, server
        self._followed: dict[ConversationId, tuple[Conversation, Reader]] = {}
        self.requests: dict[str, Handler] = {
            Follow.METHOD: self._follow,
            Place.METHOD: self._place,
            **{kind.METHOD: partial(self._execute, kind) for kind in _REQUESTS},
        }
        self.notices: Mapping[str, Notice] = {
            Unfollow.METHOD: self._unfollow,
            PeerRead.METHOD: self._read,
            Changed.METHOD: self._changed,
            TakeOver.METHOD: self._take_over,
        }

    def close(self) -> None:
        """Remove all readers that send entries over this connection."""
        for conversation_id in tuple(self._followed):
            self._stop(conversation_id)

    async def _follow(self, call: Call) -> None:
        request = _params(Follow, call.params)
        try:
            if self._server.conversations.closing:
                raise NotOwned  # the turn is about to end
            conversation = self._owned(request.conversation_id)
        except NotOwned as error:
            raise PeerRefusal(NOT_OWNER, error) from None
        self._stop(request.conversation_id)
        call.answer(encode(Followed(last=conversation.log.durable)))
        encoder = PeerEncoder(request.conversation_id)
        reader = Reader(
            conversation.log,
            Cursor.of_records(request.after),
            self._out,
            encoder,
            on_dropped=lambda error: self._stop(request.conversation_id),
            earlier=conversation.read_after,
        )
        self._followed[request.conversation_id] = conversation, reader
        if (ended := conversation.lease_ended) is not None:
            ended.add_done_callback(lambda _: self._lease_ended(conversation, reader))
        conversation.attach(reader)
        reader.pump()

    def _unfollow(self, params: Raw) -> None:
        self._stop(msgspec.json.decode(params, type=Unfollow).conversation_id)

    def _read(self, params: Raw) -> None:
        readers = msgspec.json.decode(params, type=PeerRead)
        if (followed := self._followed.get(readers.conversation_id)) is None:
            return
        conversation, reader = followed
        if readers.is_read:
            client = ReadingClient(
                principal=None,
                can_be_asked=readers.can_be_asked,
                knows_limits=readers.full,
                may_answer=readers.may_end_at_limit,
            )
            conversation.approvals.register_reader(reader, client)
        else:
            conversation.approvals.unregister_reader(reader)

    def _changed(self, params: Raw) -> None:
        self._server.conversations.changed(msgspec.json.decode(params, type=Changed).conversation_id)

    def _take_over(self, params: Raw) -> None:
        taken_over = msgspec.json.decode(params, type=TakeOver)
        self._server.conversations.streams_taken_over(
            taken_over.conversation_id, by=taken_over.by, at=taken_over.at
        )

    def _lease_ended(self, conversation: Conversation, reader: Reader) -> None:
        """Notify the other process that this process no longer owns the conversation. The other process then stops
        reading the conversation from this process.
        """
        if self._followed.get(conversation.id) == (conversation, reader):
            self._stop(conversation.id)
            released = PeerReleased(conversation_id=conversation.id)
            self._out.send(notification(PeerReleased.METHOD, encode(released)))

    def _stop(self, conversation_id: ConversationId) -> None:
        if (followed := self._followed.pop(conversation_id, None)) is not None:
            conversation, reader = followed
            conversation.detach(reader)

    async def _execute(self, kind: type[PeerRequest], call: Call) -> None:
        """Execute a request from the other process. If the request fails, the other process gets the error message
        that a client of this process would get.

        After a request has failed because this process is not the owner, all requests for the conversation fail
        until the other process sends `Follow` again. The other process can then repeat the requests in order.
        """
        request = _params(kind, call.params)
        conversation_id = request.conversation_id
        try:
            if conversation_id not in self._followed:
                raise NotOwned
            conversation = self._owned(conversation_id)
            await conversation.execute_for_peer(request, Deadline(PEER_SECONDS), answered=call.answer)
        except ParleyError as error:
            refusal = self._refusal(error)
            if refusal.number == NOT_OWNER:
                self._stop(conversation_id)
            raise refusal from None

    async def _place(self, call: Call) -> None:
        """Execute a request from another node that begins a turn on this node. The effect is the same as if a
        client of this node had sent the request.
        """
        place = _params(Place, call.params)
        conversations = self._server.conversations
        if not conversations.begins_turns_of_other_nodes:
            raise PeerRefusal(NOT_OWNER, ShuttingDown())
        try:
            if place.method is None:
                await conversations.find(place.conversation_id)
                call.answer(b"{}")
                return
            if (kind := _PLACED.get(place.method)) is None:
                raise NotOwned  # only a newer version of Parley sends this request
            conversation = conversations.get(place.conversation_id)
            request = _params(kind, place.params)
            await conversation.execute_placed(request, Deadline(PEER_SECONDS), answered=call.answer)
        except ParleyError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: ParleyError) -> PeerRefusal:
        """Return the response to a request from another process that failed with `error`."""
        if self._server.conversations.closing or isinstance(error, _NOT_OURS):
            return PeerRefusal(NOT_OWNER, error)
        if isinstance(error, StoreFailed):
            return PeerRefusal(NOT_WRITTEN, error, error.detail)
        return PeerRefusal(REFUSED, error)

    def _owned(self, conversation_id: ConversationId) -> Conversation:
        """Return the given conversation, whose turn is running in this process.

        Raises:
            NotOwned: no turn of the conversation is running in this process.
        """
        conversation = self._server.conversations.loaded(conversation_id)
        if conversation is None or conversation.turn is None:
            raise NotOwned
        return conversation


def _params(kind: type[Params], params: Raw | msgspec.UnsetType) -> Params:
    try:
        return msgspec.json.decode(b"{}" if params is UNSET else params, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidParams(error) from None


class PeerEncoder:
    """Encodes entries, including records, and deltas as notifications to another process."""

    hidden: frozenset[str] = frozenset()
    sends_records = True

    def __init__(self, conversation_id: ConversationId) -> None:
        self._id = conversation_id

    def entry(self, entry: Entry, send: Callable[[bytes], None]) -> None:
        message = PeerEntry(
            conversation_id=self._id,
            seq=entry.seq,
            at=entry.at,
            type=entry.type,
            is_event=entry.is_event,
            body=Raw(entry.body),
        )
        send(notification(PeerEntry.METHOD, encode(message)))

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Callable[[bytes], None]) -> None:
        if isinstance(delta, Delta):
            text = PeerDelta(
                conversation_id=self._id,
                item=delta.item.id,
                type=delta.item.type,
                offset=delta.offset,
                text=delta.text,
            )
            send(notification(PeerDelta.METHOD, encode(text)))
            return
        item = delta.item
        output = PeerOutput(
            conversation_id=self._id,
            item=item.id,
            call_id=item.call_id,
            stream=item.stream,
            offset=delta.offset,
            data=delta.data,
        )
        send(notification(PeerOutput.METHOD, encode(output)))
