"""Our own requests to one client: ids, answers, taking back. Knows no method."""

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
    """Each is answered at most once."""

    def __init__(self, out: Outbox, ids: Iterator[int]) -> None:
        """`ids` are those of all clients: none is ever used again, also not for a client that comes back."""
        self._out, self._ids = out, ids
        self._waiting: dict[RequestId, Callable[[Message], None]] = {}

    def __contains__(self, request_id: RequestId) -> bool:
        """Whether an answer to it is awaited."""
        return request_id in self._waiting

    def send(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> RequestId:
        """Ask; `answered` is called with the answer, which may come at any moment from now on, or never."""
        request_id = next(self._ids)
        self._waiting[request_id] = answered
        self._out.send(request(request_id, method, params))
        return request_id

    def take(self, answer: Message) -> None:
        """An answer of the client, to whatever it means to answer."""
        answered = None if answer.id is UNSET else self._waiting.pop(answer.id, None)
        if answered is None:
            log.debug("an answer to nothing that is open was ignored")
            return
        answered(answer)

    def take_back(self, request_id: RequestId, *, reason: str) -> None:
        """The client need not answer any more, and is told so; if it does, nobody listens."""
        if self._waiting.pop(request_id, None) is not None:
            self._out.send(notification(Cancelled.METHOD, encode(Cancelled(request_id=request_id, reason=reason))))

    def ignore(self, request_id: RequestId) -> None:
        """The client need not answer any more, and is not told."""
        self._waiting.pop(request_id, None)

    def forget(self) -> None:
        """The client is gone: no answer will come."""
        self._waiting.clear()
