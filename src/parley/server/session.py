"""One connected client: its negotiated features, and everything that is registered for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Protocol

from parley.config.load import Loader
from parley.ports.outbox import FrameOutbox, OpenFrame, Outbox
from parley.runtime.conversation import Conversation
from parley.runtime.turn_runner import Turn
from parley.server.context import LOCAL_USER, Principal, Reply, RequestContext
from parley.server.elicitor import NO_ELICITOR, Elicitor, FormElicitor
from parley.server.hosts import PLAIN, Features
from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.ids import ConversationId, Seq
from parley.wire.jsonrpc import RequestId
from parley.wire.mcp import PLAIN_VERSION, LogLevel

__all__ = ["SILENT", "SILENT_FRAME", "Session"]


class _SilentOutbox:
    """The outbox of events for a host that ignores them: discards everything."""

    writable = True

    def send(self, frame: bytes) -> None:
        pass

    def when_writable(self, wake: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(wake)

    def begin_frame(self) -> OpenFrame:
        return SILENT_FRAME


class _SilentFrame:
    """A message that is discarded."""

    closed = True

    def write(self, part: bytes) -> None:
        pass

    async def room(self) -> None:
        pass

    def end(self) -> None:
        pass


SILENT_FRAME: Final = _SilentFrame()
SILENT: Final = _SilentOutbox()


class StreamOutboxes(Protocol):
    """The outboxes of the streams of one client."""

    def outbox(self, conversation: ConversationId) -> FrameOutbox:
        """Return the outbox of a new stream."""
        ...

    def ended(self, conversation: ConversationId) -> None:
        """Record that a stream has ended."""
        ...


class _OneOutbox:
    """The outbox of a client that has one connection for everything."""

    def __init__(self, out: FrameOutbox) -> None:
        self._out = out

    def outbox(self, conversation: ConversationId) -> FrameOutbox:
        return self._out

    def ended(self, conversation: ConversationId) -> None:
        pass


class Session:
    """The state of one client."""

    def __init__(
        self, out: FrameOutbox, request_ids: Iterator[int], loader: Loader, principal: Principal = LOCAL_USER
    ) -> None:
        """Create the session. `loader` resolves the settings of conversations that the client creates and of
        turns that it begins.
        """
        self.out, self.loader, self.principal = out, loader, principal
        self.version = PLAIN_VERSION
        self.features = PLAIN
        self.initialized = False
        self.left_turns: dict[ConversationId, Seq] = {}
        """Conversations whose turn a call stopped waiting for, and the position before that turn."""
        self.stream_outboxes: StreamOutboxes = _OneOutbox(out)
        self.always_sends_positions = False
        """Whether events of streams always have positions: a client that may reconnect needs them."""
        self.log_level: LogLevel = "info"
        """The least severe log messages that the client wants."""
        self.requests = OutgoingRequests(request_ids)
        self.elicitor: Elicitor = NO_ELICITOR
        self.has_left = False
        self._first_requests: dict[ConversationId, str] = {}
        self._on_leave: dict[Hashable, Callable[[], None]] = {}
        self._turns: dict[Turn, tuple[Conversation, Callable[[object], None]]] = {}
        """The turns that the client began and that run, each with the callback of its end."""

    def begin(self, version: str, features: Features, *, can_be_asked: bool) -> None:
        """Record what the client negotiated by `initialize`."""
        self.version, self.features, self.initialized = version, features, True
        if can_be_asked:
            self.elicitor = FormElicitor(self.requests, features)

    def context(self, reply: Reply) -> RequestContext:
        """Return the context of a request whose answer goes to `reply`."""
        return RequestContext(principal=self.principal, features=self.features, reply=reply)

    def events_to(self, out: Outbox) -> Outbox:
        """Return the outbox for events of `out`. For a host that ignores events, it discards them."""
        return out if self.features.event_notifications else SILENT

    def stream_out(self, conversation: ConversationId) -> FrameOutbox:
        """Return the outbox for a new stream. For a host that ignores events, it discards them."""
        return self.stream_outboxes.outbox(conversation) if self.features.event_notifications else SILENT

    # --- requests that concern a conversation --------------------------------------------

    def note_request(self, conversation: ConversationId, request_id: RequestId) -> None:
        """Record that a request creates, calls or streams a conversation; the first one counts."""
        self._first_requests.setdefault(conversation, str(request_id))

    def first_request(self, conversation: ConversationId) -> str:
        """Return the id of the client's first request that concerned a conversation."""
        return self._first_requests[conversation]

    # --- turns that the client began -------------------------------------------------------

    def note_turn(self, conversation: Conversation, turn: Turn) -> None:
        """Record that a message of the client began a turn."""

        def ended(_: object) -> None:
            self._turns.pop(turn, None)

        if not self.has_left:
            self._turns[turn] = conversation, ended
            turn.work.add_done_callback(ended)

    def interrupt_turns(self) -> int:
        """Interrupt the turns that the client began; return how many run."""
        turns = tuple(self._turns.items())
        for turn, (conversation, _) in turns:
            conversation.interrupt(turn)
        return len(turns)

    # --- the end ---------------------------------------------------------------------------

    def on_leave(self, owner: Hashable, undo: Callable[[], None]) -> None:
        """Call `undo` when the client leaves, to remove the registrations of `owner`."""
        if self.has_left:
            undo()
        else:
            self._on_leave[owner] = undo

    def cancel_on_leave(self, owner: Hashable) -> None:
        """Forget the callback of `owner`, which has removed its registrations itself."""
        self._on_leave.pop(owner, None)

    @property
    def registrations(self) -> int:
        """How many owners have something registered for this client."""
        return len(self._on_leave)

    def leave(self) -> None:
        """Remove everything that is registered for the client. Its turns go on."""
        self.has_left = True
        while self._on_leave:
            _, undo = self._on_leave.popitem()
            undo()
        for turn, (_, ended) in self._turns.items():
            turn.work.remove_done_callback(ended)
        self._turns.clear()
        self.elicitor.close()
        self.elicitor = NO_ELICITOR
        self.requests.forget()
