"""Server-sent events with ids, whatever the line ends and the cuts of the bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.wire.sse import EventFramer, EventTooLong, ServerSentEvent

STREAM = (
    b": a comment\n\n"
    b"id: 1\nretry: 250\ndata:\n\n"
    b"event: message\r\nid: 2\r\ndata: first\r\ndata: second\r\n\r\n"
    b"event: ping\rdata: not a message\r\r"
    b"data:third\nid\n\n"
    b"id: 4\n\n"
    b"id: 5\ndata: unfinished\n"
)
EVENTS = [
    ServerSentEvent(b"", "1"),
    ServerSentEvent(b"first\nsecond", "2"),
    ServerSentEvent(b"third", None),
]


@given(cuts=st.lists(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_the_cuts(cuts: list[int]) -> None:
    framer, events = EventFramer(), list[ServerSentEvent]()
    places = sorted({0, len(STREAM), *cuts})
    for begin, end in itertools.pairwise(places):
        events += framer.feed(STREAM[begin:end])

    assert events == EVENTS
    assert (framer.last_id, framer.retry_seconds) == ("4", 0.25)


def test_after_a_restart_an_unfinished_event_is_gone_and_the_id_is_kept() -> None:
    framer = EventFramer()
    framer.feed(b"id: 7\ndata: a\n\nid: 8\ndata: b\nda")
    framer.restart()

    assert framer.last_id == "7"
    assert framer.feed(b"data: c\n\n") == [ServerSentEvent(b"c", "7")]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 11, b"data: 123456\ndata: 12345\n", b"data\n" * 12])
def test_an_event_over_the_limit_is_not_kept(stream: bytes) -> None:
    framer = EventFramer(10)
    assert framer.feed(b"data: 1234567890\n\n" * 3)[2].data == b"1234567890"

    with pytest.raises(EventTooLong):
        framer.feed(stream)


def test_a_delay_that_makes_no_sense_is_ignored() -> None:
    framer = EventFramer()
    framer.feed(b"retry: soon\nretry: -1\nretry: 99999999999999\n\n")

    assert framer.retry_seconds is None
