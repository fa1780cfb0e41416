"""The ids of requests that the server sends to a client (`server/outgoing_requests.py`)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec

from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.jsonrpc import Message


class Sent:
    """An outbox that records the ids of the requests."""

    writable = True

    def __init__(self) -> None:
        self.ids: list[int] = []

    def send(self, frame: bytes) -> None:
        self.ids.append(msgspec.json.decode(frame)["id"])

    def when_writable(self, do: Callable[[], None]) -> None:
        do()


def restored(answered: list[Message]) -> tuple[OutgoingRequests, list[int]]:
    """Return the requests of a restored session on one node, and the ids of three of them that are open."""
    requests, out = OutgoingRequests(count()), Sent()
    requests.use_unique_ids()
    for _ in range(3):
        requests.send("elicitation/create", b"{}", out=out, answered=answered.append)
    return requests, out.ids


def test_a_response_to_a_request_of_another_node_answers_no_request_of_this_node() -> None:
    """Two nodes can restore a session in the same moment, and any node can get the response."""
    answered: list[Message] = []
    (ours, _), (_, theirs) = restored(answered), restored([])

    for request_id in theirs:
        ours.take(Message(id=request_id))

    assert answered == []


def test_the_ids_of_a_restored_session_are_numbers_that_javascript_represents_exactly() -> None:
    _, ids = restored([])

    assert ids == list(range(ids[0], ids[0] + 3))
    assert ids[-1] < 2**53
