"""The context of a request: the server, the sender, and the reply channel."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from itertools import count
from typing import Final, Protocol

from msgspec import Struct

from parley.config.load import Loader
from parley.ports.outbox import Outbox
from parley.runtime.registry import ConversationRegistry
from parley.server.hosts import Features
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import RequestId

__all__ = ["LOCAL_USER", "OutboxReply", "Principal", "Reply", "RequestContext", "Role", "ServerContext"]


class ServerContext:
    """What all clients of a server share."""

    def __init__(
        self,
        *,
        conversations: ConversationRegistry,
        loader: Loader,
        on_initialized: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the context. `on_initialized` is called after an `initialize` was answered, for work that
        start-up postponed.
        """
        self.conversations = conversations
        self.loader = loader
        self.request_ids = count()
        """Ids of the requests that the server sends, unique among all its clients."""
        self.on_initialized = on_initialized


class Role(IntEnum):
    """The permissions of a principal. A role includes all lower roles."""

    OBSERVER = 1
    DRIVER = 2
    APPROVER = 3
    ADMIN = 4


class Principal(Struct, frozen=True, kw_only=True):
    """The authenticated sender of a request."""

    name: str
    role: Role


LOCAL_USER: Final = Principal(name="local", role=Role.ADMIN)
"""The user who runs the server: clients over stdio and unix sockets."""


class Reply(Protocol):
    """The destination of the messages that belong to one request."""

    @property
    def notifications(self) -> Outbox:
        """The outbox for notifications, until the request is answered."""
        ...

    @property
    def questions(self) -> Outbox:
        """The outbox for requests of the server, such as approval requests."""
        ...

    def events(self, request: RequestId, conversation: ConversationId, event_id: Callable[[], str]) -> Outbox:
        """Return the outbox for the events of a call. `event_id` returns the id of its events now."""
        ...

    def on_closed(self, do: Callable[[], None]) -> None:
        """Call `do` when the client has closed the channel. Never called if the channel lasts as long as the
        client.
        """
        ...

    def answer(self, frame: bytes | None) -> None:
        """Send the answer; None: the request was dropped and gets none. Called once for each request."""
        ...


class OutboxReply:
    """The reply of a client that has one connection for everything."""

    def __init__(self, out: Outbox) -> None:
        self.notifications = self.questions = out

    def events(self, request: RequestId, conversation: ConversationId, event_id: Callable[[], str]) -> Outbox:
        return self.notifications

    def on_closed(self, do: Callable[[], None]) -> None:
        pass

    def answer(self, frame: bytes | None) -> None:
        if frame is not None:
            self.questions.send(frame)


class RequestContext(Struct, frozen=True, kw_only=True):
    """Who sent one request, what its client sees, and where its answer goes."""

    principal: Principal
    features: Features
    reply: Reply
