"""The interface of a transport, which carries messages between a client and a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from parley.client.errors import ClientError
from parley.wire.jsonrpc import RequestId

__all__ = ["OnFailed", "RestartableTransport", "SeparateRequests", "Transport"]


OnFailed = Callable[[RequestId, ClientError | None], None]
"""A callback for a request to which no JSON-RPC response will arrive. Its arguments are the request id and the
error; the error is None if the connection was lost.
"""


class Transport(Protocol):
    """Carries messages between a client and one server.

    `ServerProcess` is the transport to a child process, `ResidentSocket` the transport to a resident server, and
    `RemoteServer` the transport to a server at a URL.
    """

    async def start(self, *, on_message: Callable[[bytes], None], on_end: Callable[[int | None], None]) -> None:
        """Connect to the server.

        `on_message` is called with each message from the server. `on_end` is called once, when no more messages can
        arrive. Its argument is the exit code of the server's process, or None if there is no such process.

        Raises:
            OSError: the server cannot be started or reached.
        """

    def send(self, data: bytes) -> None:
        """Send one message, which ends with a newline. Return immediately; data that the server has not read stays
        in memory.
        """

    async def close(self) -> None:
        """End the connection and release all resources. If the call is cancelled, release the resources
        immediately.
        """


@runtime_checkable
class RestartableTransport(Transport, Protocol):
    """A transport to a server that keeps running without the connection, so that a client can reconnect."""

    async def restart(self) -> None:
        """Reconnect after `on_end` has been called. When the new connection ends, `on_end` is called again.

        Raises:
            OSError: the server cannot be reached.
        """


@runtime_checkable
class SeparateRequests(Transport, Protocol):
    """A transport that sends each request separately.

    A request can fail without affecting other requests. The client can receive messages in a different order than
    the server sent them. The server may send the text of an unfinished item again from its beginning.
    """

    async def start(
        self,
        *,
        on_message: Callable[[bytes], None],
        on_end: Callable[[int | None], None],
        on_failed: OnFailed = lambda request_id, error: None,
    ) -> None:
        """Connect to the server, as `Transport.start` does. `on_failed` is called for each request to which no
        JSON-RPC response will arrive.
        """

    def deliver_first(self, request_id: RequestId) -> None:
        """Deliver the result of the request `request_id` before any message that belongs to no request. For
        example, the client needs the confirmation of a stream before the events of the stream. Call this method
        before sending the request.
        """
