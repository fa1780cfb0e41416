"""The context of a request: the server, the sender, and the channel for the response."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from itertools import count
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from parley.config.load import Loader
from parley.ports.availability import AVAILABLE, AvailabilityState
from parley.ports.outbox import Outbox
from parley.ports.store import Viewer
from parley.runtime.registry import ConversationRegistry
from parley.server.hosts import Features
from parley.server.search_limit import SearchLimit
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import RequestId
from parley.wire.modern import ModernMeta
from parley.wire.principals import LOCAL, PrincipalRef

__all__ = [
    "LOCAL_USER",
    "PAGE_USER",
    "RESERVED_NAMES",
    "OutboxReply",
    "Principal",
    "Reply",
    "RequestContext",
    "Role",
    "ServerContext",
]

PAGE: Final = "page"
RESERVED_NAMES: Final = ("local", "serve", PAGE)
"""The principal names that no stored token can have. They belong to three principals: the user who runs the server
(`local`), the holder of the token that is valid only while the server runs (`serve`), and the user who has signed
in to the web page with a one-time code (`page`).
"""


class ServerContext:
    """The components of a server that all its clients share."""

    def __init__(
        self,
        *,
        conversations: ConversationRegistry,
        loader: Loader,
        on_initialized: Callable[[], None] = lambda: None,
        find_key: Callable[[], bytes] | None = None,
    ) -> None:
        """Create the context.

        `on_initialized` is called after each response to `initialize` or `server/discover`. The callback does work
        that was postponed at startup. `find_key` is called when the signing key is first needed, and returns the
        key. Without `find_key`, a new key is created.
        """
        self.conversations = conversations
        self.loader = loader
        self.request_ids = count()
        """The iterator that supplies the ids of requests from the server to its clients. No two requests have the
        same id.
        """
        self.client_numbers = count(1)
        """The iterator that supplies the numbers of new clients."""
        self.subscribed = Counter[str]()
        """The number of subscriptions to resources, by the key of the principal (`Principal.key`)."""
        self.searches = SearchLimit()
        self.availability: AvailabilityState = AVAILABLE
        """The last observed availability of the store."""
        self.on_initialized = on_initialized
        self._find_key = find_key

    @cached_property
    def signing_key(self) -> bytes:
        """The key that signs request states and event ids. A client sends these strings back to the server.

        Raises:
            OSError: the key file in the home directory cannot be read or created.
        """
        return secrets.token_bytes(32) if self._find_key is None else self._find_key()


class Role(IntEnum):
    """The permissions of a principal. Each role includes the permissions of all lower roles."""

    OBSERVER = 1
    DRIVER = 2
    APPROVER = 3
    ADMIN = 4

    @property
    def label(self) -> str:
        """The name of the role in lower case, as it appears in messages to users."""
        return self.name.lower()


class Principal(Struct, frozen=True, kw_only=True):
    """The authenticated sender of a request."""

    name: str
    role: Role
    conversation: ConversationId | None = None
    """The id of the only conversation that the principal may see; None if the principal may see all
    conversations.
    """
    token_id: str = ""
    """The id of the principal's token, which distinguishes the token from a revoked token with the same name. The
    id is not secret; it is empty only for `LOCAL_USER`.
    """
    since: float = 0.0
    """The time when the token was created, in seconds since the epoch; 0 for a principal without a stored token."""
    sign_in: str = ""
    """The id of the sign-in that authenticated the request; empty if the request contains a token."""

    @property
    def ref(self) -> PrincipalRef:
        """The name and the token id of the principal, in the form that logs and events contain."""
        return PrincipalRef(name=self.name, token_id=self.token_id)

    @property
    def is_limited(self) -> bool:
        """True if the role is below admin. The principal then cannot loosen settings."""
        return self.role < Role.ADMIN

    @property
    def identity(self) -> str:
        """The string under which the store records how far the principal has read each conversation. It is the
        token id, or the name of a principal without a stored token. The user of the web page who has signed in with
        a one-time code has the same identity as the local user. The string stays the same after a restart of the
        server.
        """
        if self.name == PAGE:
            return LOCAL.name  # the user of the page and the local user are the same person
        return self.name if self.name in RESERVED_NAMES else self.token_id

    @property
    def viewer(self) -> Viewer:
        """The `Viewer` that represents the principal in store queries. Turns that ended before the principal's
        token was created count as read.
        """
        return Viewer(identity=self.identity, since=self.since)

    @property
    def token_holder(self) -> Principal:
        """This principal without its sign-in to the web page. Requests that contain the token itself have this
        principal.
        """
        return replace(self, sign_in="") if self.sign_in else self

    def belongs_to(self, other: Principal) -> bool:
        """Return whether this principal is `other`, or has signed in to the web page with the token of `other`."""
        return self == other or self.token_holder == other

    @property
    def limited_as(self) -> str | None:
        """The key by which the connections of the principal are counted and limited; None for an admin, whose
        connections are not limited.
        """
        return self.key if self.is_limited else None

    @property
    def key(self) -> str:
        """The string that identifies the principal in sessions, in signed states and in counters. It consists of
        the token id and the name.
        """
        return f"{self.token_id}:{self.name}"

    @property
    def session_owner(self) -> str:
        """The string that identifies the principal as the owner of a stored HTTP session. If the principal has
        signed in to the web page, the string also identifies the sign-in, so that each sign-in has its own
        sessions.
        """
        return f"{self.key}:{self.sign_in}" if self.sign_in else self.key


LOCAL_USER: Final = Principal(name=LOCAL.name, role=Role.ADMIN)
"""The user who runs the server. This is the principal of clients over stdio and Unix sockets."""
PAGE_USER: Final = Principal(name=PAGE, role=Role.ADMIN, token_id=PAGE)
"""The user who runs the server, after this user has signed in to the web page with a one-time code."""


class Reply(Protocol):
    """The destination of the messages that belong to one request."""

    @property
    def notifications(self) -> Outbox:
        """The outbox for notifications that are sent before the response."""
        ...

    @property
    def server_requests(self) -> Outbox:
        """The outbox for requests that the server sends to the client, such as approval requests."""
        ...

    def events(self, request: RequestId, conversation: ConversationId, event_id: Callable[[], str]) -> Outbox:
        """Return the outbox for the events of `conversation` that a `codex` or `codex-reply` call sends to the
        client.

        `request` is the request id of the call. `event_id` returns the current event id of the call. After the turn
        of the call has begun, this is the id of the turn.
        """
        ...

    def on_closed(self, do: Callable[[], None]) -> None:
        """Call `do` if the client closes the stream for the response before the response is sent.

        `do` is never called if the client has only one connection for all messages.
        """
        ...

    def answer(self, frame: bytes | None) -> None:
        """Send the encoded response. This method must be called exactly once for each request. If `frame` is None,
        the client has cancelled the request and gets no response.
        """
        ...


class OutboxReply:
    """The implementation of `Reply` for a client that has one connection for all messages."""

    def __init__(self, out: Outbox) -> None:
        self.notifications = self.server_requests = out

    def events(self, request: RequestId, conversation: ConversationId, event_id: Callable[[], str]) -> Outbox:
        return self.notifications

    def on_closed(self, do: Callable[[], None]) -> None:
        pass

    def answer(self, frame: bytes | None) -> None:
        if frame is not None:
            self.server_requests.send(frame)


class RequestContext(Struct, frozen=True, kw_only=True):
    """The sender of one request, the features of its client, and the destination of its response."""

    principal: Principal
    features: Features
    """The features of the client at the protocol version of this request."""
    reply: Reply
    meta: ModernMeta | None = None
    """The `_meta` of a request at protocol version 2026-07-28; None for earlier versions."""
