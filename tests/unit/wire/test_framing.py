"""Splitting bytes into lines and server-sent events, at every boundary."""

from __future__ import annotations

import tracemalloc

import pytest

from parley.wire.framing import MAX_LINE_BYTES, PREFIX_BYTES, SUFFIX_BYTES, LineFramer, Overlong
from parley.wire.sse import DataFramer

LIMIT = PREFIX_BYTES


def test_one_read_may_hold_several_lines() -> None:
    framer = LineFramer()

    assert framer.feed(b"one\ntwo\nthr") == [b"one", b"two"]
    assert framer.feed(b"ee\n") == [b"three"]
    assert framer.end() == []


def test_one_line_may_take_several_reads() -> None:
    framer = LineFramer()

    assert [framer.feed(piece) for piece in (b"o", b"", b"n", b"e")] == [[], [], [], []]
    assert framer.feed(b"\n") == [b"one"]


def test_blank_lines_and_carriage_returns_are_left_to_the_reader_of_the_lines() -> None:
    assert LineFramer().feed(b"\n\r\none\r\n") == [b"", b"\r", b"one\r"]


def test_the_last_line_needs_no_line_end() -> None:
    framer = LineFramer()
    framer.feed(b"one\ntwo")

    assert framer.end() == [b"two"]
    assert framer.end() == []


def test_nothing_at_all_is_no_line() -> None:
    assert LineFramer().end() == []


@pytest.mark.parametrize("cut", [1, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2])
def test_a_line_may_be_exactly_as_long_as_the_limit(cut: int) -> None:
    line, longer = b"a" * LIMIT, b"b" * (LIMIT + 1)
    framer = LineFramer(LIMIT)

    data = line + b"\n" + longer + b"\n" + line + b"\n"
    frames = framer.feed(data[:cut]) + framer.feed(data[cut:])

    assert frames == [line, Overlong(b"b" * PREFIX_BYTES, b"b" * SUFFIX_BYTES), line]


def test_a_line_that_is_too_long_is_reported_at_its_end_and_the_next_line_is_read() -> None:
    framer = LineFramer(LIMIT)

    head, tail = b'{"id":7,' + b"a" * LIMIT, b"a" * LIMIT + b',"id":8}'
    kept = Overlong(head[:PREFIX_BYTES], tail[-SUFFIX_BYTES:])

    assert framer.feed(head) == []
    assert framer.feed(tail[:-4]) == []
    assert framer.feed(tail[-4:-1]) == []
    assert framer.feed(tail[-1:] + b"\nnext\n") == [kept, b"next"]
    assert framer.feed(b"\n%b%b\n" % (head, tail)) == [b"", kept]


def test_a_line_that_is_too_long_may_be_the_last_and_unfinished() -> None:
    framer = LineFramer(LIMIT)
    framer.feed(b"a" * (LIMIT + 1))

    assert framer.end() == [Overlong(b"a" * PREFIX_BYTES, b"a" * SUFFIX_BYTES)]
    assert framer.feed(b"b\n") == [b"b"]


def test_messages_of_64_mb_are_taken() -> None:
    assert MAX_LINE_BYTES == 64 * 1024 * 1024


def test_an_endless_line_is_not_kept() -> None:
    limit, chunk = 256 * 1024, 64 * 1024
    framer = LineFramer(limit)

    tracemalloc.start()
    try:
        for _ in range(100):
            framer.feed(b"a" * chunk)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    slack = 32 * 1024
    assert held < chunk + PREFIX_BYTES + slack
    assert peak < 2 * (limit + chunk) + slack  # the pieces, and the joined line


def test_an_event_ends_with_a_blank_line() -> None:
    framer = DataFramer()

    assert framer.feed(b'data: {"a":1}\n') == []
    assert framer.feed(b"\n") == [b'{"a":1}']


def test_only_data_matters() -> None:
    stream = b": comment\nevent: message\nid: 7\nretry: 5\ndata: one\n\nevent: ping\n\n\ndata:two\r\n\r\n"

    assert DataFramer().feed(stream) == [b"one", b"two"]


def test_data_over_several_lines_is_joined() -> None:
    assert DataFramer().feed(b"data: one\ndata:\ndata\ndata:  two\n\n") == [b"one\n\n\n two"]


def test_an_event_that_the_end_of_the_stream_cut_off_is_not_an_event() -> None:
    assert DataFramer().feed(b"data: one\n\ndata: two\n") == [b"one"]
