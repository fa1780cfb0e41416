"""For any output of a command, the model gets its beginning, its end, and the size of the omitted part."""

from __future__ import annotations

import re
from typing import NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parley.conversation.records import StreamOutput
from parley.tools.truncation import MAX_BYTES, MAX_LINES, for_model
from parley.wire.ids import ItemId

MARKER = re.compile(r"\[\.\.\. (\d+) lines, (\d+) bytes truncated \.\.\.\]\n")

limits = st.sampled_from([MAX_BYTES // 2, 8000, 65536])
"""Generates the number of bytes that are kept of the beginning and of the end."""

runs_of_text = st.tuples(
    st.sampled_from(["a", "é", "€", "😀", "\n", "line\n", "x" * 79 + "\n"]), st.integers(0, 6000)
)
texts = st.lists(runs_of_text, max_size=5).map(lambda runs: "".join(piece * count for piece, count in runs))

runs_of_bytes = st.tuples(
    st.one_of(st.binary(max_size=8), st.sampled_from([b"\x80", b"\xf0\x9f", b"\xe2\x82", b"\n", b"a"])),
    st.integers(0, 6000),
)
anything = st.lists(runs_of_bytes, max_size=5).map(lambda runs: b"".join(piece * count for piece, count in runs))


class Cut(NamedTuple):
    """A text for the model, split at the line that describes the omission."""

    before: str
    lines_missing: int
    bytes_missing: int
    after: str


def output(data: bytes, limit: int) -> StreamOutput:
    return StreamOutput(
        item=ItemId("i1"),
        stream="stdout",
        head=data[:limit],
        tail=data[limit:][-limit:],
        size=len(data),
        lines=data.count(b"\n"),
    )


def line_count(data: bytes) -> int:
    return data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def fits(data: bytes) -> bool:
    return len(data) <= MAX_BYTES and line_count(data) <= MAX_LINES


def taken_apart(text: str, data: bytes) -> Cut:
    (marker,) = MARKER.finditer(text)
    before = text[: marker.start()]
    if not ends_with_a_line_of(data, before):
        before = before.removesuffix("\n")  # this line end was added to put the marker on its own line
    return Cut(before, int(marker[1]), int(marker[2]), text[marker.end() :])


def ends_with_a_line_of(data: bytes, before: str) -> bool:
    lines = before.count("\n")
    beginning = b"".join(line + b"\n" for line in data.split(b"\n", lines)[:lines])
    return len(beginning) <= MAX_BYTES // 2 and beginning.decode(errors="replace") == before


@settings(deadline=None)
@given(data=anything, limit=limits)
def test_output_within_the_limits_is_read_as_it_came(data: bytes, limit: int) -> None:
    data = data[:MAX_BYTES]
    assume(line_count(data) <= MAX_LINES)

    assert for_model(output(data, limit)) == data.decode(errors="replace")


@settings(deadline=None)
@given(whole=texts, limit=limits)
def test_a_long_text_is_cut_between_characters_and_every_missing_byte_and_line_is_counted(
    whole: str, limit: int
) -> None:
    data = whole.encode()
    assume(not fits(data))

    cut = taken_apart(for_model(output(data, limit)), data)

    before, after = cut.before.encode(), cut.after.encode()
    assert data.startswith(before)
    assert data.endswith(after)
    assert cut.bytes_missing == len(data) - len(before) - len(after) > 0
    assert cut.lines_missing == data.count(b"\n") - before.count(b"\n") - after.count(b"\n")
    assert max(len(before), len(after)) <= MAX_BYTES // 2
    assert max(line_count(before), line_count(after)) <= MAX_LINES // 2


@settings(deadline=None)
@given(whole=texts, limit=limits)
def test_no_more_is_left_out_than_the_limits_ask_for(whole: str, limit: int) -> None:
    data = whole.encode()
    assume(not fits(data))

    cut = taken_apart(for_model(output(data, limit)), data)

    longest_character = 4
    for half in (cut.before.encode(), cut.after.encode()):
        assert len(half) > MAX_BYTES // 2 - longest_character or line_count(half) == MAX_LINES // 2


@settings(deadline=None)
@given(data=anything, limit=limits)
def test_bytes_that_are_no_text_are_cut_like_text(data: bytes, limit: int) -> None:
    assume(not fits(data))
    whole = data.decode(errors="replace")

    cut = taken_apart(for_model(output(data, limit)), data)

    assert whole.startswith(cut.before)
    assert whole.endswith(cut.after)
    assert cut.bytes_missing >= max(1, len(data) - MAX_BYTES)
    assert cut.lines_missing == whole.count("\n") - cut.before.count("\n") - cut.after.count("\n")
    assert max(len(cut.before), len(cut.after)) <= MAX_BYTES // 2
