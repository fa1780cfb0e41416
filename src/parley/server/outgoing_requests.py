"""Requests of the server to one client: ids, answers, withdrawal. Knows no method."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from msgspec import UNSET

from parley.ports.outbox import Outbox
from parley.wire.jsonrpc import Message, RequestId, encode, notification, request
from parley.wire.mcp import Cancelled

__all__ = ["OutgoingRequests"]

log = logging.getLogger(__name__)


class OutgoingRequests:
    """The open requests to one client. Each is answered at most once."""

    def __init__(self, out: Outbox, ids: Iterator[int]) -> None:
        """`ids` are shared by all clients, so that no id is used twice."""
        self._out, self._ids = out, ids
        self._waiting: dict[RequestId, Callable[[Message], None]] = {}

    def __contains__(self, request_id: RequestId) -> bool:
        """Return whether a request is open."""
        return request_id in self._waiting

    def send(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> RequestId:
        """Send a request and return its id; `answered` is called with the answer, if one comes."""
        request_id = next(self._ids)
        self._waiting[request_id] = answered
        self._out.send(request(request_id, method, params))
        return request_id

    def take(self, answer: Message) -> None:
        """Handle an answer of the client. An answer to no open request is ignored."""
        answered = None if answer.id is UNSET else self._waiting.pop(answer.id, None)
        if answered is None:
            log.debug("ignored an answer to no open request")
            return
        answered(answer)

    def withdraw(self, request_id: RequestId, *, reason: str) -> None:
        """Withdraw a request and tell the client. A later answer is ignored."""
        if self._waiting.pop(request_id, None) is not None:
            self._out.send(notification(Cancelled.METHOD, encode(Cancelled(request_id=request_id, reason=reason))))

    def ignore(self, request_id: RequestId) -> None:
        """Withdraw a request without telling the client."""
        self._waiting.pop(request_id, None)

    def forget(self) -> None:
        """Forget all requests, because the client has left."""
        self._waiting.clear()
