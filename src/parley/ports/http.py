"""The port of HTTP requests: what the server needs of one, whatever library receives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from parley.ports.outbox import FrameOutbox, OpenFrame

__all__ = ["HttpRequest", "MessageStream"]


class MessageStream(FrameOutbox, Protocol):
    """An answer that consists of messages, sent one after another. It is an outbox until the client leaves."""

    @property
    def closed(self) -> bool: ...

    def send(self, frame: bytes, event_id: str | None = None) -> None:
        """Send one message. A client that reconnects names the last `event_id` that it received."""
        ...

    def begin_frame(self, event_id: str | None = None) -> OpenFrame:
        """Begin a message that is sent in parts."""
        ...

    def on_closed(self, do: Callable[[], None]) -> None:
        """Call `do` once, when the client has left or the stream has ended; at once if it has."""
        ...

    async def flush(self) -> None:
        """Return when everything was written, or the stream is closed."""
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
        """Path and query, as the client sent them."""
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
        """Note that the client is known: its connection is kept when there are too many."""
        ...

    async def body(self, most: int, why_too_large: Callable[[int], str | None]) -> bytes:
        """Read the body. `why_too_large` says why there is no memory for so many bytes, if there is none.

        Raises:
            BodyTooLarge: it is larger than `most` bytes, or there is no memory for it.
            BodyUnreadable: it did not arrive in time or completely.
        """
        ...

    def open_stream(self, headers: Mapping[str, str] | None = None) -> MessageStream:
        """Return a stream to answer with."""
        ...
