"""Our own requests to one client: ids, answers, taking back. Knows no method."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count

from msgspec import UNSET

from parley.ports.outbox import Outbox
from parley.wire.jsonrpc import Message, RequestId, encode, notification, request
from parley.wire.mcp import Cancelled

__all__ = ["Requests"]

log = logging.getLogger(__name__)


class Requests:
    """Each is answered at most once, and its id is never used again."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._ids = count()
        self._waiting: dict[RequestId, Callable[[Message], None]] = {}

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

    def forget(self) -> None:
        """The client is gone: no answer will come."""
        self._waiting.clear()
