"""Server-sent events, split at any byte."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.errors import ReplyTooLarge
from parley.wire.framing import SseFramer


def fed(*pieces: bytes) -> list[bytes]:
    framer = SseFramer()
    return [event for piece in pieces for event in framer.feed(piece)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"event: x\nid: 7\nretry: 1\ndata: one\n\n", [b"one"]),
        (b"data: one\nevent: x\n\n", [b"one"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one \n\n", [b" one "]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b"data: one\r\ndata:two\r\n\r\n", [b"one\ntwo"]),
        (b"data\n\n", [b""]),
        (b"data:\n\n", [b""]),
        (b"data: one\ndata\ndata: two\n\n", [b"one\n\ntwo"]),
        (b"database: one\n\n", []),
        (b"event: x\n\n\n\n", []),
        (b": data: one\n\n", []),
        (b"data: one\n", []),
        (b"data: one", []),
        (b"", []),
    ],
)
def test_the_data_of_each_finished_event_is_handed_out(stream: bytes, events: list[bytes]) -> None:
    assert fed(stream) == events
    assert fed(*(stream[i : i + 1] for i in range(len(stream)))) == events


LINES = st.sampled_from([b"data: x", b"data:y", b"data", b"event: e", b": c", b"", b"", b"data: \xc3\xa9\r"])


@given(
    lines=st.lists(LINES, max_size=30),
    ends=st.sampled_from([b"\n", b"\r\n"]),
    cuts=st.lists(st.integers(0, 400), max_size=30),
)
def test_no_cut_changes_the_events(lines: list[bytes], ends: bytes, cuts: list[int]) -> None:
    stream = b"".join(line + ends for line in lines)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(places)]

    assert fed(*pieces) == fed(stream)


def test_an_event_in_many_small_pieces_is_put_together_once() -> None:
    pieces = [b"x" * 10] * 100_000

    assert fed(b"data: ", *pieces, b"\n\n") == [b"x" * 1_000_000]


def test_only_an_event_that_does_not_end_is_too_long() -> None:
    framer = SseFramer()
    megabyte = b"\ndata: " + b"x" * 1024 * 1024 + b"\n"
    finished = sum(len(framer.feed(megabyte)) for _ in range(80))
    assert finished == 79

    endless = SseFramer()
    line = b"data: " + b"x" * 1024 * 1024 + b"\n"
    assert [endless.feed(line) for _ in range(63)] == [[]] * 63
    with pytest.raises(ReplyTooLarge, match="max_event_bytes"):
        endless.feed(line)


def test_many_small_events_may_be_longer_together_than_one_may_be() -> None:
    framer = SseFramer(limit=1000)
    many = b"data: 0123456789\n\n" * 1000

    assert len(framer.feed(many)) == 1000
    with pytest.raises(ReplyTooLarge):
        framer.feed(b"data: %b\n\n" % (b"x" * 1001))


@pytest.mark.parametrize("line", [b"data:\n", b"data: x\n", b"d"])
def test_an_event_without_an_end_is_too_long_in_any_number_of_lines(line: bytes) -> None:
    framer = SseFramer(limit=100_000)

    def feed_for_ever() -> None:
        while True:
            framer.feed(line * 1000)

    with pytest.raises(ReplyTooLarge, match="limit of 100000 bytes in one event"):
        feed_for_ever()


@pytest.mark.promises("framing.never-blocked")
def test_the_time_for_an_event_grows_with_its_length_and_not_with_its_square() -> None:
    def seconds(chunks: int) -> float:
        framer = SseFramer()
        began = time.process_time()
        for _ in range(chunks):
            framer.feed(b"data: x\n" * 200)
        return time.process_time() - began

    short = min(seconds(500) for _ in range(3))

    assert min(seconds(4000) for _ in range(3)) < 24 * short  # eight times as long; the square would be 64
