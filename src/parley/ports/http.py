"""The interface of an HTTP request, independent of the HTTP library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from parley.ports.outbox import FrameOutbox, OpenFrame

if TYPE_CHECKING:
    from socket import socket

__all__ = ["HttpRequest", "MessageStream"]


class MessageStream(FrameOutbox, Protocol):
    """An HTTP response that consists of messages, which are sent one after another. The response is an outbox
    until the client disconnects.
    """

    @property
    def closed(self) -> bool: ...

    @property
    def is_in_message(self) -> bool:
        """True while a message is being sent in parts."""
        ...

    def send(self, frame: bytes, event_id: str | None = None) -> None:
        """Send one message with the id `event_id`; None means no id. A client that reconnects sends the last id
        that it received.
        """
        ...

    def begin_frame(self, event_id: str | None = None) -> OpenFrame:
        """Begin a message that is sent in parts. `event_id` has the same meaning as for `send`."""
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
        """Close the stream when all messages are written."""
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
        """The network address of the client."""
        ...

    @property
    def header_bytes(self) -> int: ...

    def header(self, name: str) -> list[str]:
        """Return all values of the request header `name`; an empty list if the request does not have this
        header.
        """
        ...

    def authenticated(self, limited_as: str | None = None) -> bool:
        """Record that the client is authenticated. Its connection is then not closed to make room for other
        connections.

        `limited_as` names a principal that may have at most half of all connections; None means no such limit. If
        the principal already has that many connections, return False and record nothing.
        """
        ...

    def has_no_body(self) -> None:
        """Allow further requests on the connection of an unauthenticated client, if this request has no body. If
        the request has a body, do nothing: the connection is closed after the response.
        """
        ...

    async def body(self, max_bytes: int, why_too_large: Callable[[int], str | None]) -> bytes:
        """Read and return the body.

        `why_too_large` is called with a number of bytes. It returns the reason why there is not enough memory for
        this number of bytes, or None if there is enough memory.

        Raises:
            BodyTooLarge: the body is larger than `max_bytes`, or there is not enough memory for it.
            BodyUnreadable: the body did not arrive in time or is incomplete.
        """
        ...

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Add headers to the response. They are sent in addition to the headers of the response that the endpoint
        returns.
        """
        ...

    def open_link(self, protocol: str, accept: Callable[[socket], None]) -> object:
        """Return a response that opens a WebSocket with the subprotocol `protocol`.

        When the WebSocket is open, `accept` is called with a socket whose bytes the WebSocket carries.
        """
        ...

    def open_stream(self) -> MessageStream:
        """Respond with a stream of messages, and return the stream."""
        ...
