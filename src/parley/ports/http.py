"""The port of HTTP requests: the interface of a request, independent of the HTTP library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from parley.ports.outbox import FrameOutbox, OpenFrame

__all__ = ["HttpRequest", "MessageStream"]


class MessageStream(FrameOutbox, Protocol):
    """An answer that consists of messages, sent one after another. Can be used as an outbox until the client
    leaves.
    """

    @property
    def closed(self) -> bool: ...

    def send(self, frame: bytes, event_id: str | None = None) -> None:
        """Send one message. A client that reconnects names the last `event_id` that it received."""
        ...

    def begin_frame(self, event_id: str | None = None) -> OpenFrame:
        """Begin a message that is sent in parts."""
        ...

    def on_closed(self, do: Callable[[], None]) -> None:
        """Call `do` once, when the client leaves or the stream ends; at once if that has happened."""
        ...

    async def flush(self) -> None:
        """Wait until everything was written, or the stream is closed."""
        ...

    def end(self) -> None:
        """Close the stream when everything was written."""
        ...

    def close(self) -> None:
        """Close the stream at once."""
        ...


class HttpRequest(Protocol):
    """One request, whose body is not read yet."""

    @property
    def method(self) -> str: ...

    @property
    def target(self) -> str:
        """What the client asks for, as it sent it: path and query, or another form, such as a whole address."""
        ...

    @property
    def remote(self) -> str:
        """The address of the client."""
        ...

    @property
    def header_bytes(self) -> int: ...

    def header(self, name: str) -> list[str]:
        """Return all values of a header."""
        ...

    def authenticated(self) -> None:
        """Record that the client is authenticated: its connection is kept when there are too many connections."""
        ...

    async def body(self, most: int, why_too_large: Callable[[int], str | None]) -> bytes:
        """Read the body. `why_too_large` is called with a number of bytes and returns why there is no memory for
        them, or None.

        Raises:
            BodyTooLarge: it is larger than `most` bytes, or there is no memory for it.
            BodyUnreadable: it did not arrive in time or completely.
        """
        ...

    def open_stream(self, headers: Mapping[str, str] | None = None) -> MessageStream:
        """Return a stream to answer with."""
        ...
