"""Manages the requests that the server sends to one client: their ids, responses and withdrawals."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import Final

from msgspec import UNSET, Struct

from parley.ports.outbox import Outbox
from parley.wire.jsonrpc import Message, RequestId, encode, notification, request
from parley.wire.mcp import Cancelled

__all__ = ["OutgoingRequests"]

log = logging.getLogger(__name__)

MAX_FIRST_ID: Final = 2**52
"""The upper limit of the random first id that `use_unique_ids` chooses. The limit leaves room for further ids,
because JavaScript represents integers exactly only up to 2**53.
"""


class _Open(Struct, frozen=True):
    """A request that has no response yet."""

    frame: bytes
    out: Outbox
    """The outbox to which the request was sent. A withdrawal of the request is sent to the same outbox."""
    answered: Callable[[Message], None]


class OutgoingRequests:
    """The open requests to one client. The server handles at most one response to each request."""

    def __init__(self, ids: Iterator[int]) -> None:
        """Create an object without open requests.

        `ids` supplies the ids of new requests. All clients of the process share `ids`, so that no two requests have
        the same id.
        """
        self._ids = ids
        self._open: dict[RequestId, _Open] = {}

    def __contains__(self, request_id: RequestId) -> bool:
        """Return whether the request with the id `request_id` is open."""
        return request_id in self._open

    def use_unique_ids(self) -> None:
        """From now on, use ids that no other server process uses for this client. A response to a request from an
        earlier process or from another node then cannot be mistaken for a response to a request from this process.
        """
        self._ids = count(secrets.randbelow(MAX_FIRST_ID))

    def send(self, method: str, params: bytes, *, out: Outbox, answered: Callable[[Message], None]) -> RequestId:
        """Send a request and return its id. `answered` is called with the response when the response arrives. If
        the request is withdrawn first, `answered` is not called.
        """
        request_id = next(self._ids)
        frame = request(request_id, method, params)
        self._open[request_id] = _Open(frame, out, answered)
        out.send(frame)
        return request_id

    def send_again(self, lost: Outbox, out: Outbox, *, but_not: Collection[bytes] = ()) -> None:
        """For each open request that was sent to the outbox `lost`, send the request again to `out`, because the
        client may not have received it. Requests whose frames are in `but_not` are not sent again; the client has
        received these frames.
        """
        for request_id, one in tuple(self._open.items()):
            if one.out is lost and one.frame not in but_not:
                self._open[request_id] = _Open(one.frame, out, one.answered)
                out.send(one.frame)

    def take(self, answer: Message) -> None:
        """Remove the request to which `answer` is the response, and call its callback. Ignore a response that
        belongs to no open request.
        """
        one = None if answer.id is UNSET else self._open.pop(answer.id, None)
        if one is None:
            log.debug("ignored a response that belongs to no open request")
            return
        one.answered(answer)

    def withdraw(self, request_id: RequestId, *, reason: str) -> None:
        """Withdraw a request, and notify the client of the withdrawal and its `reason`. A later response is
        ignored.
        """
        if (one := self._open.pop(request_id, None)) is not None:
            one.out.send(notification(Cancelled.METHOD, encode(Cancelled(request_id=request_id, reason=reason))))

    def ignore(self, request_id: RequestId) -> None:
        """Withdraw a request without notifying the client. A later response is ignored."""
        self._open.pop(request_id, None)

    def forget(self) -> None:
        """Remove all requests without notifying the client, because the client has disconnected."""
        self._open.clear()
