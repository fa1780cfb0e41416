"""The interface of a transport, which carries the messages of the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["RestartableTransport", "Transport"]


class Transport(Protocol):
    """Carries messages between a client and one server.

    `ServerProcess` is the transport to a child process, `ResidentSocket` the transport to a resident server.
    """

    async def start(self, *, on_message: Callable[[bytes], None], on_end: Callable[[int | None], None]) -> None:
        """Connect to the server.

        `on_message` is called with each message of the server. `on_end` is called once, when no more messages can
        come, with the exit code of the server's process, or None if there is no such process.

        Raises:
            OSError: the server cannot be started or reached.
        """

    def send(self, data: bytes) -> None:
        """Send one message with its line end. Return at once; data that the server has not read stays in memory."""

    async def close(self) -> None:
        """End the connection and release all resources. If cancelled, release them at once."""


@runtime_checkable
class RestartableTransport(Transport, Protocol):
    """A transport to a server that continues without the connection, so that a client can connect again."""

    async def restart(self) -> None:
        """Connect again after `on_end` was called. Afterwards `on_end` can be called once more.

        Raises:
            OSError: the server cannot be reached.
        """
