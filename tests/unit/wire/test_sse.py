"""Server-sent events with ids, for all line ends and all divisions of the bytes into reads."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.errors import ReplyTooLarge
from parley.wire.sse import DataFramer, ErrorData, EventFramer, EventTooLong, ServerSentEvent

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


def test_a_byte_order_mark_is_skipped_at_the_beginning_of_each_stream() -> None:
    framer = EventFramer()
    assert framer.feed(b"\xef\xbb\xbfdata: a\n\n") == [ServerSentEvent(b"a", None)]
    assert framer.feed(b"\xef\xbb\xbfdata: b\n\n") == []
    framer.restart()

    assert [framer.feed(piece) for piece in (b"\xef", b"\xbb", b"\xbfdata: c\n\n")] == [
        [],
        [],
        [ServerSentEvent(b"c", None)],
    ]


# --- data without ids ----------------------------------------------------------------------------

LINE_ENDS = [b"\n", b"\r", b"\r\n"]
DATA_STREAM = (
    b": comment\nevent: message\nid: 7\nretry: 5\ndata: one\n\n"
    b"event: error\n\n\ndata:two\ndata:\ndata\ndata:  three\n\n"
    b"event: error\ndata: four\n\ndata: five\nevent:error\n\ndata: six\n\ndata: unfinished\n"
)
DATA = [b"one", b"two\n\n\n three", ErrorData(b"four"), ErrorData(b"five"), b"six"]


@given(data=st.data(), end=st.sampled_from(LINE_ENDS), mark=st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_data_does_not_depend_on_the_cuts(data: st.DataObject, end: bytes, mark: bytes) -> None:
    stream = mark + DATA_STREAM.replace(b"\n", end)
    places = sorted({0, len(stream), *data.draw(st.lists(st.integers(0, len(stream))))})
    framer, found = DataFramer(), list[bytes]()
    for begin, stop in itertools.pairwise(places):
        found += framer.feed(stream[begin:stop])

    assert found == DATA
    assert list(map(type, found)) == list(map(type, DATA))


pieces = st.lists(
    st.sampled_from(
        [
            b"data: ",
            b"data",
            b": ping",
            b"event: error",
            b"x",
            b" ",
            b"\n",
            b"\r",
            b"\r\n",
            b"\xef\xbb\xbf",
            b"\xef",
        ]
    ),
    max_size=30,
)


@given(pieces=pieces, data=st.data())
def test_any_stream_means_the_same_wherever_it_is_cut(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    places = sorted({0, len(stream), *data.draw(st.lists(st.integers(0, len(stream))))})
    whole, cut = DataFramer(), DataFramer()

    assert [one for begin, end in itertools.pairwise(places) for one in cut.feed(stream[begin:end])] == whole.feed(
        stream
    )


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 20, b"data: 123456\ndata: 12345\n", b"data\n" * 12])
@pytest.mark.parametrize("end", LINE_ENDS)
def test_data_over_the_limit_is_refused(stream: bytes, end: bytes) -> None:
    framer = DataFramer(10)
    assert framer.feed(b"data: 1234567890\n\n".replace(b"\n", end) * 3) == [b"1234567890"] * 3

    with pytest.raises(ReplyTooLarge):
        framer.feed(stream.replace(b"\n", end))


CPU_SECONDS = 4
"""The maximum CPU time in seconds to read 4 MB, on a slow machine. If each read copied the lines before it, reading
would take more than ten times as long.
"""


@pytest.mark.parametrize("line", [b"data: x\n", b"data\n", b": comment\n", b"event: x\n", b"x"])
def test_an_event_without_an_end_is_read_in_linear_time(line: bytes) -> None:
    framer, piece = DataFramer(64 * 1024**2), line * (256 // len(line))
    began_at = time.thread_time()
    for _ in range(4 * 1024**2 // len(piece)):
        assert framer.feed(piece) == []

    assert time.thread_time() - began_at < CPU_SECONDS
