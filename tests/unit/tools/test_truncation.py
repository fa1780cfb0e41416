"""Truncation of a command's output."""

from __future__ import annotations

import pytest

from parley.conversation.records import StreamOutput
from parley.tools.truncation import both_for_model, for_end_event, for_model
from parley.wire.ids import ItemId

KEPT = 64 * 1024


def output(data: bytes) -> StreamOutput:
    return StreamOutput(
        item=ItemId("i1"),
        stream="stdout",
        head=data[:KEPT],
        tail=data[KEPT:][-KEPT:],
        size=len(data),
        lines=data.count(b"\n"),
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"hello\n", b"no line feed", b"x" * 10240, b"x\n" * 256, b"x\n" * 255 + b"x", b"\n" * 256],
    ids=["nothing", "a line", "part of a line", "all bytes", "all lines", "all lines, one unended", "empty lines"],
)
def test_output_at_the_limits_is_shown_whole(data: bytes) -> None:
    assert for_model(output(data)) == data.decode()


def test_one_byte_too_many_costs_the_byte_in_the_middle() -> None:
    data = b"a" * 5120 + b"-" + b"z" * 5120

    assert for_model(output(data)) == "a" * 5120 + "\n[... 0 lines, 1 bytes truncated ...]\n" + "z" * 5120


def test_one_line_too_many_costs_the_line_in_the_middle() -> None:
    data = b"a\n" * 128 + b"gone\n" + b"z\n" * 128

    assert for_model(output(data)) == "a\n" * 128 + "[... 1 lines, 5 bytes truncated ...]\n" + "z\n" * 128


def test_a_last_line_without_its_line_feed_counts_as_a_line() -> None:
    data = b"a\n" * 128 + b"gone\n" + b"z\n" * 127 + b"z"

    assert for_model(output(data)) == "a\n" * 128 + "[... 1 lines, 5 bytes truncated ...]\n" + "z\n" * 127 + "z"


def test_a_beginning_that_ends_with_its_line_is_followed_by_the_mark_at_once() -> None:
    data = b"a" * 5119 + b"\n" + b"gone" + b"z" * 5120

    assert for_model(output(data)) == "a" * 5119 + "\n[... 0 lines, 4 bytes truncated ...]\n" + "z" * 5120


def test_omitted_output_is_counted() -> None:
    data = b"0123456\n" * 1_000_000

    line = "0123456\n"
    missing = 1_000_000 - 256
    assert for_model(output(data)) == (
        line * 128 + f"[... {missing} lines, {missing * 8} bytes truncated ...]\n" + line * 128
    )


def test_a_character_at_the_cut_is_left_out_whole() -> None:
    data = b"a" + "€".encode() * 5000 + b"z"

    shown = "€" * 1706
    assert for_model(output(data)) == f"a{shown}\n[... 0 lines, {15002 - 2 * 5119} bytes truncated ...]\n{shown}z"


def test_bytes_that_are_no_text_are_shown_as_replacement_characters() -> None:
    assert for_model(output(b"a\xff\xfeb\x00c\xc3")) == "a��b\x00c�"


def test_stray_continuation_bytes_at_the_cut_cost_three_of_them_at_most() -> None:
    data = b"a" * 5120 + b"\x80" * 6000 + b"z"

    assert for_model(output(data)) == "a" * 5120 + "\n[... 0 lines, 884 bytes truncated ...]\n" + "�" * 5116 + "z"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"short\n", "short\n"),
        (b"x" * 60_000, "x" * 5120),
        ("€".encode() * 6000, "€" * (10240 // 3)),
        (b"x\n" * 400, "x\n" * 256),
        (b"cut \xe2\x82", "cut \ufffd"),
    ],
)
def test_the_end_event_has_the_beginning_and_nothing_else(data: bytes, shown: str) -> None:
    assert for_end_event(output(data)) == shown


def test_two_streams_share_the_limits_and_one_may_have_what_the_other_does_not_need() -> None:
    both = both_for_model(output(b"o\n" * 300), output(b"e\n" * 300))
    little = both_for_model(output(b"o\n" * 10), output(b"e\n" * 300))

    assert both == (
        "o\n" * 64 + "[... 172 lines, 344 bytes truncated ...]\n" + "o\n" * 64,
        "e\n" * 64 + "[... 172 lines, 344 bytes truncated ...]\n" + "e\n" * 64,
    )
    assert little == ("o\n" * 10, "e\n" * 123 + "[... 54 lines, 108 bytes truncated ...]\n" + "e\n" * 123)
