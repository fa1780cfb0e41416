"""The interface for connections to other servers: to the processes of the same home and, if this process is a node,
to the other nodes of the database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw

from parley.wire.jsonrpc import Message

__all__ = ["Link", "Peers"]


class Link(Protocol):
    """A connection to another process.

    If the connection breaks, the callback `on_lost` that was passed to `Peers.connect` is called. Messages that are
    sent after that are discarded.
    """

    @property
    def version(self) -> str:
        """The version of the protocol between nodes (`wire/nodes.py`); empty for a connection to a process of the
        same home.
        """
        ...

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        """Send a request.

        `answered` is called with the response, which is a result or an error, before the next message is handled.
        The callback `answered` is not called if the link breaks before the response arrives.
        """
        ...

    def notify(self, method: str, params: bytes) -> None:
        """Send a notification, without waiting."""
        ...

    def close(self) -> None:
        """Close the connection, without calling the callback `on_lost`."""
        ...


class Peers(Protocol):
    """Connects to the other processes of the home and to the other nodes, and listens for their connections."""

    @property
    def address(self) -> str:
        """The address at which this process listens (`Owner.address`); empty if this process is not listening."""
        ...

    async def listen(self) -> None:
        """Begin to listen for connections, unless this process is already listening.

        Raises:
            StoreFailed: the process cannot listen.
        """
        ...

    async def connect(
        self, address: str, *, on_notification: Callable[[str, Raw], None], on_lost: Callable[[], None]
    ) -> Link | None:
        """Connect to the process at `address`. Return None if the process is no longer listening or cannot be
        reached.

        `on_notification` is called with the method and the parameters of each notification, in order. `on_lost` is
        called once, when the connection breaks.
        """
        ...

    def can_reach(self, address: str) -> bool:
        """Return whether this process can connect to the process at `address`. A process can connect to the
        processes of its home. A node can also connect to the other nodes.
        """
        ...

    def notify_all(self, method: str, params: bytes) -> None:
        """Send a notification to all other processes of the home and, if this process is a node, to all other
        nodes. Return without waiting.

        A notification announces a change in the store. A process that misses the notification finds the change in
        the store later.
        """
        ...

    def has_others(self) -> bool:
        """Return whether another process of the home, or another node, may be listening. Return True if this cannot
        be determined.
        """
        ...

    async def close(self) -> None:
        """Stop listening, and close all connections to other processes."""
        ...
