"""The port of the other processes that share the home."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw

from parley.wire.jsonrpc import Message

__all__ = ["Link", "Peers"]


class Link(Protocol):
    """A connection to another process. When it breaks, `gone` is called; messages sent after that are lost."""

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        """Send a request. `answered` is called with its answer, before the next message is handled. It is not
        called if the link breaks.
        """
        ...

    def notify(self, method: str, params: bytes) -> None:
        """Send a notification."""
        ...

    def close(self) -> None:
        """Close the connection; `gone` is not called."""
        ...


class Peers(Protocol):
    """Finds the other processes, and listens to them."""

    @property
    def address(self) -> str:
        """The address at which this process listens (`Owner.address`); empty while it does not listen."""
        ...

    async def listen(self) -> None:
        """Begin to listen, unless this process listens already.

        Raises:
            StoreFailed: the system refuses.
        """
        ...

    async def connect(
        self, address: str, *, on_notification: Callable[[str, Raw], None], gone: Callable[[], None]
    ) -> Link | None:
        """Connect to the process at an address; return None if it does not listen any more.

        `on_notification` is called with the method and the parameters of each notification, in order. `gone` is
        called once, when the connection breaks.
        """
        ...

    def notify_all(self, method: str, params: bytes) -> None:
        """Notify every other process soon. A process that is not reached finds the news in the store."""
        ...

    def has_others(self) -> bool:
        """Return whether another process listens now; True if this cannot be found out."""
        ...

    async def close(self) -> None:
        """Stop listening and close all connections."""
        ...
