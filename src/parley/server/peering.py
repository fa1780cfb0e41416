"""Another process of the home as our client: it follows what runs here, and passes on what its own clients say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from parley.conversation.log import Cursor, Delta, Entry
from parley.conversation.output import OutputDelta
from parley.errors import LeaseLost, NotOwned, OwnedElsewhere, ParleyError, ShuttingDown, StoreFailed
from parley.ports.outbox import Outbox
from parley.ports.store import CALL_SECONDS
from parley.runtime.conversation import Conversation, PeerRequest
from parley.runtime.deadline import Deadline
from parley.runtime.readers import Reader
from parley.server.context import ServerContext
from parley.server.dispatch import Call, Dispatch, Handler, Notice
from parley.server.error_mapping import RequestRefused
from parley.server.outgoing_requests import OutgoingRequests
from parley.server.serve import Transport
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import INVALID_PARAMS, encode, notification
from parley.wire.peers import (
    NOT_OWNER,
    NOT_WRITTEN,
    REFUSED,
    AnswerQuestion,
    Changed,
    Follow,
    Followed,
    InterruptTurn,
    PeerDelta,
    PeerEntry,
    PeerOutput,
    PeerRead,
    RenameConversation,
    Submit,
    Unfollow,
)

__all__ = ["PeerEncoder", "serve_peer"]

log = logging.getLogger(__name__)

Params = TypeVar("Params", bound=Struct)

PEER_SECONDS: Final = CALL_SECONDS - 1.0
"""How long a request of another process waits for the write lock: that process is answered before it tells its
client that this one is silent."""

_REQUESTS: Final[tuple[type[PeerRequest], ...]] = (Submit, AnswerQuestion, InterruptTurn, RenameConversation)
_NOT_OURS: Final = (OwnedElsewhere, NotOwned, LeaseLost, ShuttingDown)


async def serve_peer(transport: Transport, host: ServerContext) -> None:
    """Serve another process until it is gone. What runs goes on."""
    peering = _Peering(transport.outbox, host)
    requests = OutgoingRequests(transport.outbox, host.request_ids)
    try:
        async with asyncio.TaskGroup() as tasks:
            dispatch = Dispatch(
                transport.outbox, peering.requests, own=requests, tasks=tasks, notices=peering.notices
            )
            await transport.read(dispatch.take)
            dispatch.abandon()
    finally:
        peering.gone()
        transport.outbox.close()


class _Peering:
    """One of the other processes."""

    def __init__(self, out: Outbox, host: ServerContext) -> None:
        self._out, self._host = out, host
        self._followed: dict[ConversationId, tuple[Conversation, Reader]] = {}
        self.requests: Mapping[str, Handler] = {
            Follow.METHOD: self._follow,
            **{kind.METHOD: partial(self._execute, kind) for kind in _REQUESTS},
        }
        self.notices: Mapping[str, Notice] = {
            Unfollow.METHOD: self._unfollow,
            PeerRead.METHOD: self._read,
            Changed.METHOD: self._changed,
        }

    def gone(self) -> None:
        for conversation_id in tuple(self._followed):
            self._stop(conversation_id)

    async def _follow(self, call: Call) -> None:
        wish = _params(Follow, call.params)
        try:
            if self._host.conversations.closing:
                raise NotOwned  # soon
            conversation = self._ours(wish.conversation_id)
        except NotOwned as error:
            raise RequestRefused(NOT_OWNER, str(error)) from None
        self._stop(wish.conversation_id)
        call.answer(encode(Followed(last=conversation.log.durable)))
        voice = PeerEncoder(wish.conversation_id)
        reader = Reader(conversation.log, Cursor.of_records(wish.after), self._out, voice)
        self._followed[wish.conversation_id] = conversation, reader
        conversation.attach(reader)
        reader.pump()

    def _unfollow(self, params: Raw) -> None:
        self._stop(msgspec.json.decode(params, type=Unfollow).conversation_id)

    def _read(self, params: Raw) -> None:
        said = msgspec.json.decode(params, type=PeerRead)
        if (followed := self._followed.get(said.conversation_id)) is None:
            return
        conversation, reader = followed
        if said.is_read:
            conversation.register_reader(reader, can_be_asked=said.can_be_asked, knows_limits=said.full)
        else:
            conversation.unregister_reader(reader)

    def _changed(self, params: Raw) -> None:
        self._host.conversations.changed(msgspec.json.decode(params, type=Changed).conversation_id)

    def _stop(self, conversation_id: ConversationId) -> None:
        if (followed := self._followed.pop(conversation_id, None)) is not None:
            conversation, reader = followed
            conversation.detach(reader)

    async def _execute(self, kind: type[PeerRequest], call: Call) -> None:
        """Execute a request; a refusal has the words that a client of this process would get.

        A process that is told "not the owner" has to follow again first: its later requests must not be executed
        before the refused one.
        """
        request = _params(kind, call.params)
        conversation_id = request.conversation_id
        try:
            if conversation_id not in self._followed:
                raise NotOwned
            conversation = self._ours(conversation_id)
            await conversation.execute_for_peer(request, Deadline(PEER_SECONDS), answered=call.answer)
        except ParleyError as error:
            if self._host.conversations.closing or isinstance(error, _NOT_OURS):
                self._stop(conversation_id)
                raise RequestRefused(NOT_OWNER, str(error)) from None
            if isinstance(error, StoreFailed):
                raise RequestRefused(NOT_WRITTEN, error.detail) from None
            raise RequestRefused(REFUSED, str(error)) from None

    def _ours(self, conversation_id: ConversationId) -> Conversation:
        """One whose turn runs here. Raises NotOwned."""
        conversation = self._host.conversations.loaded(conversation_id)
        if conversation is None or conversation.turn is None:
            raise NotOwned
        return conversation


def _params(kind: type[Params], params: Raw | msgspec.UnsetType) -> Params:
    try:
        return msgspec.json.decode(b"{}" if params is UNSET else params, type=kind)
    except msgspec.DecodeError as error:
        raise RequestRefused(INVALID_PARAMS, f"invalid params: {error}") from None


class PeerEncoder:
    """All that happens, records included, for another process."""

    hidden: frozenset[str] = frozenset()
    tells_records = True

    def __init__(self, conversation_id: ConversationId) -> None:
        self._id = conversation_id

    def entry(self, entry: Entry) -> bytes:
        told = PeerEntry(
            conversation_id=self._id,
            seq=entry.seq,
            at=entry.at,
            type=entry.type,
            is_event=entry.is_event,
            body=Raw(entry.body),
        )
        return notification(PeerEntry.METHOD, encode(told))

    def delta(self, delta: Delta | OutputDelta, encoded: bytes) -> bytes:
        if isinstance(delta, Delta):
            text = PeerDelta(
                conversation_id=self._id,
                item=delta.item.id,
                type=delta.item.type,
                offset=delta.offset,
                text=delta.text,
            )
            return notification(PeerDelta.METHOD, encode(text))
        item = delta.item
        said = PeerOutput(
            conversation_id=self._id,
            item=item.id,
            call_id=item.call_id,
            stream=item.stream,
            offset=delta.offset,
            data=delta.data,
        )
        return notification(PeerOutput.METHOD, encode(said))
