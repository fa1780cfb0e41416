"""The state of one connected client: its negotiated features and its registrations, such as streams and callbacks.

A client leaves when its connection ends. A client that uses sessions over HTTP leaves when its session ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

from msgspec import Struct

from parley.config.load import Loader
from parley.ports.outbox import FrameOutbox, OpenFrame, Outbox
from parley.runtime.conversation import Conversation
from parley.runtime.turn_runner import Turn
from parley.server.access import may_answer
from parley.server.context import LOCAL_USER, Principal, Reply, RequestContext
from parley.server.elicitor import NO_ELICITOR, Elicitor, FormElicitor
from parley.server.hosts import PLAIN, Features
from parley.server.modern.requests import can_be_asked, modern_context
from parley.server.modern.rounds import OnAsk, RoundElicitor
from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.ids import ConversationId, Seq
from parley.wire.jsonrpc import RequestId
from parley.wire.mcp import PLAIN_VERSION, InitializeParams, LogLevel
from parley.wire.modern import MODERN_VERSION, ModernMeta

__all__ = ["SILENT", "SILENT_FRAME", "Session", "StreamState"]

MAX_FIRST_REQUESTS: Final = 1000
"""The maximum number of conversations for which a session stores the id of the client's first request. Approval
requests contain this id. Beyond this number, the session removes the oldest id, except the ids for conversations
that a stream or a call of the client reads.
"""


class _SilentOutbox:
    """An outbox that discards all messages. It is used for hosts, which ignore events."""

    writable = True

    def send(self, frame: bytes) -> None:
        pass

    def when_writable(self, wake: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(wake)

    def begin_frame(self) -> OpenFrame:
        return SILENT_FRAME


class _SilentFrame:
    """An `OpenFrame` that discards all parts of its message."""

    closed = True

    def write(self, part: bytes) -> None:
        pass

    async def room(self) -> None:
        pass

    def end(self) -> None:
        pass


SILENT_FRAME: Final = _SilentFrame()
SILENT: Final = _SilentOutbox()


class StreamState(Struct, frozen=True, array_like=True):
    """The arguments that are needed to open a stream again after a restart of the server."""

    conversation: ConversationId
    request: RequestId
    number: int
    """The number of the stream in its session. All streams of a session have different numbers, even if they send
    the same conversation.
    """
    after: int
    event_meta: bool
    as_log: bool
    before: int | None = None


class StreamOutboxes(Protocol):
    """Creates the outboxes for the streams of one client."""

    def outbox(self, conversation: ConversationId, number: int) -> FrameOutbox:
        """Return the outbox for a new stream of `conversation`. `number` is the number of the stream in the
        session.
        """
        ...

    def ended(self, conversation: ConversationId) -> None:
        """Record that the stream of `conversation` has ended."""
        ...


class _OneOutbox:
    """The implementation of `StreamOutboxes` for a client that has one connection for all messages."""

    def __init__(self, out: FrameOutbox) -> None:
        self._out = out

    def outbox(self, conversation: ConversationId, number: int) -> FrameOutbox:
        return self._out

    def ended(self, conversation: ConversationId) -> None:
        pass


class _Connection:
    """The state that all `Session` objects of one client share: callbacks and turns, which are kept until the
    client leaves.
    """

    def __init__(self) -> None:
        self.has_left = False
        self.on_leave: dict[Hashable, Callable[[], None]] = {}
        self.turns: dict[Turn, tuple[Conversation, Callable[[object], None]]] = {}
        """The running turns that the client began, each with its conversation and the callback that is called when
        the turn ends.
        """
        self.abandoned_turns: dict[ConversationId, Seq] = {}


class Session:
    """The state of one client: its features and its registrations, such as streams and callbacks."""

    def __init__(
        self,
        out: FrameOutbox,
        request_ids: Iterator[int],
        loader: Loader,
        principal: Principal = LOCAL_USER,
        *,
        connection: _Connection | None = None,
    ) -> None:
        """Create the session.

        `out` is the outbox of the client, and `request_ids` supplies the ids of requests to the client. `loader`
        resolves the settings of conversations that the client creates and of turns that it begins. `connection`
        holds the callbacks and turns that are kept until the client leaves; by default, a new object is created.
        """
        self._request_ids = request_ids
        self.out, self.loader, self.principal = out, loader, principal
        self.version = PLAIN_VERSION
        self.features = PLAIN
        self.initialized = False
        self.stream_outboxes: StreamOutboxes = _OneOutbox(out)
        self.last_stream = 0
        """The number of the stream that was opened last."""
        self.may_reconnect = False
        """True if the client may reconnect. The events of its streams then always contain their positions."""
        self.log_level: LogLevel = "info"
        """The lowest level of the log messages that the client gets."""
        self.requests = OutgoingRequests(request_ids)
        self.elicitor: Elicitor = NO_ELICITOR
        self._asks_by_result = False
        """True for a request at protocol version 2026-07-28 whose client can be asked to decide approvals."""
        self.initialize_params: InitializeParams | None = None
        """The parameters of the `initialize` request; None before this request."""
        self.outlives_server = False
        """True if the session is stored, so that its streams continue after a restart of the server."""
        self.saved_with: Callable[[StreamState], AbstractAsyncContextManager[StreamState]] = nullcontext
        """A function that returns the context manager in which a stream is opened. On entry, the context manager
        stores the session together with the stream, and returns the stream with its final number. If the session
        cannot be stored, entry raises a `ParleyError`. By default, nothing is stored.
        """
        self._on_changed: dict[Hashable, Callable[[], None]] = {}
        self._on_reconnect: dict[Hashable, Callable[[], None]] = {}
        self._first_requests: dict[ConversationId, str] = {}
        self._subscriptions: dict[Hashable, ConversationId] = {}
        """A mapping from each subscription to its conversation. A subscription is a stream, or a call that waits
        for a turn.
        """
        self._connection = connection or _Connection()

    def begin(self, version: str, features: Features, params: InitializeParams) -> None:
        """Record the version, the features and the parameters that the client negotiated with `initialize`."""
        self.version, self.features, self.initialized = version, features, True
        self.initialize_params = params
        if params.capabilities.can_be_asked and may_answer(self.principal):
            self.elicitor = FormElicitor(self.requests, self.principal.ref, features)
        self.changed()

    # --- changes -------------------------------------------------------------------------

    def on_changed(self, owner: Hashable, do: Callable[[], None]) -> None:
        """From now on, call `do` whenever the negotiated features, the log level, the streams or the resource
        subscriptions have changed. A second call with the same `owner` replaces the callback.
        """
        self._on_changed[owner] = do

    def changed(self) -> None:
        """Call the callbacks of `on_changed`, because the state of the session has changed."""
        for do in tuple(self._on_changed.values()):
            do()

    def on_reconnect(self, owner: Hashable, do: Callable[[], None]) -> None:
        """From now on, call `do` whenever the client has reconnected and may have missed messages. A second call
        with the same `owner` replaces the callback.
        """
        self._on_reconnect[owner] = do

    def reconnected(self) -> None:
        """Call the callbacks of `on_reconnect`, because the client has reconnected and may have missed messages."""
        for do in tuple(self._on_reconnect.values()):
            do()

    # --- requests ------------------------------------------------------------------------

    def context(self, reply: Reply, meta: ModernMeta | None = None) -> RequestContext:
        """Return the context of a request whose response is sent to `reply`.

        `meta` is the `_meta` of a request at protocol version 2026-07-28; None for earlier versions.
        """
        if meta is not None:
            return modern_context(meta, self.principal, reply, self.loader)
        return RequestContext(principal=self.principal, features=self.features, reply=reply)

    def events_to(self, out: Outbox) -> Outbox:
        """Return an outbox that sends events to `out`. If the client is a host that ignores events, the outbox
        discards the events.
        """
        return out if self.features.event_notifications else SILENT

    def next_stream(self) -> int:
        """Return the number of a new stream. No earlier stream of the session had this number."""
        self.last_stream += 1
        return self.last_stream

    def stream_out(self, conversation: ConversationId, number: int) -> FrameOutbox:
        """Return the outbox for a new stream of `conversation`. If the client is a host that ignores events, the
        outbox discards the events.
        """
        if not self.features.event_notifications:
            return SILENT
        return self.stream_outboxes.outbox(conversation, number)

    def for_request(self, context: RequestContext) -> Session:
        """Return a session that serves only one request at protocol version 2026-07-28.

        Changes to the returned session do not affect later requests. The streams and callbacks that are registered
        with the returned session are removed when the client leaves.
        """
        session = Session(self.out, self._request_ids, self.loader, self.principal, connection=self._connection)
        session.version, session.features, session.initialized = MODERN_VERSION, context.features, True
        session._asks_by_result = can_be_asked(context)
        return session

    def elicitor_for(self, on_ask: OnAsk | None) -> Elicitor:
        """Return the elicitor for one call or stream. For a request at protocol version 2026-07-28 whose client can
        be asked to decide approvals, the elicitor calls `on_ask`, which ends the call with an approval request.
        """
        return RoundElicitor(on_ask) if self._asks_by_result and on_ask is not None else self.elicitor

    @property
    def has_left(self) -> bool:
        return self._connection.has_left

    # --- requests that concern a conversation --------------------------------------------

    def note_request(self, conversation: ConversationId, request_id: RequestId) -> None:
        """Store the id of the first request from the client that creates, continues or streams the conversation. If
        an id is already stored for the conversation, do nothing.

        If more than `MAX_FIRST_REQUESTS` ids are stored, remove the oldest id. The new id, and the ids for
        conversations that a stream or a call of the client reads, are not removed.
        """
        self._first_requests.setdefault(conversation, str(request_id))
        if len(self._first_requests) > MAX_FIRST_REQUESTS:
            needed = {conversation, *self._subscriptions.values()}
            if (unused := next((one for one in self._first_requests if one not in needed), None)) is not None:
                del self._first_requests[unused]

    def first_request(self, conversation: ConversationId) -> str:
        """Return the id that `note_request` has stored for the conversation; an empty string if no id is stored."""
        return self._first_requests.get(conversation, "")

    def note_subscription(self, subscription: Hashable, conversation: ConversationId) -> None:
        """Register `subscription`, which is a stream or a call that reads the conversation."""
        self._subscriptions[subscription] = conversation

    def forget_subscription(self, subscription: Hashable) -> None:
        """Remove the registration of `subscription`. Do nothing if `subscription` is not registered."""
        self._subscriptions.pop(subscription, None)

    def is_subscribed(self, conversation: ConversationId) -> bool:
        """Return whether a stream or a call of the client reads the conversation."""
        return conversation in self._subscriptions.values()

    # --- turns that the client began -------------------------------------------------------

    @property
    def abandoned_turns(self) -> dict[ConversationId, Seq]:
        """The conversations in which a `codex` or `codex-reply` call of the client stopped waiting for its turn,
        each with the position before the turn.
        """
        return self._connection.abandoned_turns

    def note_turn(self, conversation: Conversation, turn: Turn) -> None:
        """Register a turn that a message from the client began, so that `interrupt_turns` can interrupt it."""

        def ended(_: object) -> None:
            self._connection.turns.pop(turn, None)

        if not self.has_left:
            self._connection.turns[turn] = conversation, ended
            turn.work.add_done_callback(ended)

    def interrupt_turns(self) -> int:
        """Interrupt the running turns that the client began, and return their number."""
        turns = tuple(self._connection.turns.items())
        for turn, (conversation, _) in turns:
            conversation.interrupt(turn, principal=self.principal.ref)
        return len(turns)

    # --- leaving ---------------------------------------------------------------------------

    def on_leave(self, owner: Hashable, undo: Callable[[], None]) -> None:
        """Call `undo` when the client leaves, or immediately if the client has already left. `undo` must remove
        what `owner` has registered for the client, such as streams and callbacks.
        """
        if self.has_left:
            undo()
        else:
            self._connection.on_leave[owner] = undo

    def cancel_on_leave(self, owner: Hashable) -> None:
        """Remove the callback that `on_leave` has stored for `owner`. Call this method after the streams and
        callbacks of `owner` have been removed.
        """
        self._connection.on_leave.pop(owner, None)

    def leave(self) -> None:
        """Remove the streams, subscriptions and callbacks of the client. Its turns continue."""
        connection = self._connection
        connection.has_left = True
        while connection.on_leave:
            _, undo = connection.on_leave.popitem()
            undo()
        for turn, (_, ended) in connection.turns.items():
            turn.work.remove_done_callback(ended)
        connection.turns.clear()
        self.elicitor.close()
        self.elicitor = NO_ELICITOR
        self.requests.forget()
