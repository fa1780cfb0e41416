"""A connection to another process, for requests, responses and notifications.

This module assigns the ids of requests, and passes each response to the sender of its request. It does not
interpret the methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import msgspec
from msgspec import Raw, UnsetType

from parley.transports.unix import Connection
from parley.wire.framing import Overlong
from parley.wire.jsonrpc import (
    METHOD_NOT_FOUND,
    Message,
    RequestId,
    decode_message,
    error_response,
    notification,
    request,
)

__all__ = ["SocketLink"]

log = logging.getLogger(__name__)

_NO_PARAMS: Final = Raw(b"{}")


class SocketLink:
    """A connection to another process, which has the same home directory or is another node.

    The connection stays open while `read` is running. An invalid message ends the connection, because the content
    of the message, such as the response to a request, cannot be recovered.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        on_notification: Callable[[str, Raw], None],
        on_lost: Callable[[], None],
        version: str = "",
    ) -> None:
        self._connection, self.version = connection, version
        self._on_notification, self._on_lost = on_notification, on_lost
        self._ids = count(1)
        self._waiting: dict[RequestId, Callable[[Message], None]] = {}
        self._listens = True
        self._closed = False

    @property
    def keeps_up(self) -> bool:
        """True if the number of sent bytes that the other process has not read is below the high-water mark."""
        return self._connection.outbox.writable

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        request_id = next(self._ids)
        if self._listens:
            self._waiting[request_id] = answered
            self._connection.outbox.send(request(request_id, method, params))

    def notify(self, method: str, params: bytes) -> None:
        self._connection.outbox.send(notification(method, params))

    def close(self) -> None:
        self._closed = True
        self._stop()
        self._connection.close()

    async def flush(self) -> None:
        """Wait until the other process has read all messages or the connection has ended."""
        await self._connection.outbox.flush()

    async def read(self) -> None:
        """Handle messages from the other process until either process ends the connection."""
        try:
            await self._connection.read(self._take)
        finally:
            self._stop()
            self._connection.close()
        if not self._closed:
            self._closed = True
            _safely(self._on_lost)

    def _stop(self) -> None:
        self._listens = False
        self._waiting.clear()
        self._connection.stop_reading()

    def _take(self, frame: bytes | Overlong) -> None:
        if not self._listens:
            return
        try:
            message = None if isinstance(frame, Overlong) else decode_message(frame)
        except msgspec.DecodeError as error:
            log.warning("another process sent an invalid message: %s", error)
            message = None
        if message is None:
            self._stop()
        elif not isinstance(message.method, str):
            self._take_answer(message)
        elif isinstance(message.id, UnsetType):
            params = _NO_PARAMS if isinstance(message.params, UnsetType) else message.params
            _safely(partial(self._on_notification, message.method, params))
        else:
            what = f"method not found: {message.method}"
            self._connection.outbox.send(error_response(message.id, METHOD_NOT_FOUND, what))

    def _take_answer(self, message: Message) -> None:
        answered = None if isinstance(message.id, UnsetType) else self._waiting.pop(message.id, None)
        if answered is not None:
            _safely(partial(answered, message))


def _safely(do: Callable[[], None]) -> None:
    try:
        do()
    except Exception:
        log.exception("failed to handle a message of another process")
