"""The interface of an HTTP request, independent of the HTTP library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from parley.ports.outbox import FrameOutbox, OpenFrame

if TYPE_CHECKING:
    from socket import socket

__all__ = ["HttpRequest", "MessageStream"]


class MessageStream(FrameOutbox, Protocol):
    """An HTTP response to which the server can add messages for as long as the client is connected. It is used as
    an outbox.
    """

    @property
    def closed(self) -> bool: ...

    @property
    def is_in_message(self) -> bool:
        """True while a message is being sent in parts (`begin_frame`). Other messages are delayed until the end of
        this message.
        """
        ...

    def send(self, frame: bytes, event_id: str | None = None) -> None:
        """Send one message with the event id `event_id`; None means no id. A client that reconnects sends the last
        event id that it received, so that the server can continue after that message.
        """
        ...

    def begin_frame(self, event_id: str | None = None) -> OpenFrame:
        """Begin a message that is sent in parts, and return the object to which the parts are written. `event_id`
        has the same meaning as for `send`.
        """
        ...

    def on_closed(self, do: Callable[[], None]) -> None:
        """Call `do` once, when the client disconnects or the stream ends.

        If this has already happened, call `do` immediately.
        """
        ...

    async def flush(self) -> None:
        """Wait until all messages are written or the stream is closed."""
        ...

    def end(self) -> None:
        """Close the stream as soon as all messages are written. Return without waiting."""
        ...

    def close(self) -> None:
        """Close the stream immediately. Messages that are not written yet are lost."""
        ...


class HttpRequest(Protocol):
    """An HTTP request whose body has not been read yet."""

    @property
    def method(self) -> str: ...

    @property
    def target(self) -> str:
        """The request target as the client sent it: a path with a query, or another form such as a complete URL."""
        ...

    @property
    def remote(self) -> str:
        """The IP address of the client; empty if the address is unknown."""
        ...

    @property
    def header_bytes(self) -> int: ...

    def header(self, name: str) -> list[str]:
        """Return all values of the request header `name`; an empty list if the request does not have this
        header.
        """
        ...

    def mark_authenticated(self, limited_as: str | None = None) -> bool:
        """Record that the client is authenticated, and return True. If there are too many connections, the server
        closes connections of unauthenticated clients, but not this connection.

        `limited_as` names a principal that may have at most half of all connections; None means no such limit. If
        the principal already has that many connections, record nothing and return False.
        """
        ...

    def keep_alive_if_no_body(self) -> None:
        """If this request has no body, allow an unauthenticated client to send further requests on its connection.
        If the request has a body, do nothing; the connection is then closed after the response.
        """
        ...

    async def body(self, max_bytes: int, why_too_large: Callable[[int], str | None]) -> bytes:
        """Read and return the body of the request. `max_bytes` is its maximum size.

        `why_too_large` is called with a number of bytes. It returns the reason why there is not enough memory for
        this number of bytes, or None if there is enough memory.

        Raises:
            BodyTooLarge: the body is larger than `max_bytes`, or there is not enough memory for it.
            BodyUnreadable: the body did not arrive in time or is incomplete.
        """
        ...

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Add headers to the response. These headers are sent in addition to the headers that the endpoint sets in
        its response.
        """
        ...

    def open_link(self, protocol: str, accept: Callable[[socket], None]) -> object:
        """Return the response that upgrades the connection to a WebSocket with the subprotocol `protocol`. The
        endpoint returns this response to the HTTP library.

        When the WebSocket is open, `accept` is called with a socket. The WebSocket carries the bytes that are
        written to and read from this socket.
        """
        ...

    def open_stream(self) -> MessageStream:
        """Return a new stream of messages. The endpoint returns the stream as its response to this request."""
        ...
