"""Any division of the bytes into reads gives the same frames."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from parley.wire.framing import PREFIX_BYTES, SUFFIX_BYTES, LineFramer, Overlong
from parley.wire.sse import DataFramer

LIMIT = PREFIX_BYTES + 5
"""A size limit in bytes that is small enough for examples on both sides."""

A_CHUNK = 64


def cuts_of(data: bytes, places: list[int]) -> list[bytes]:
    """Return `data` in pieces, cut at these positions; some pieces may be empty."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def frames_of(framer: LineFramer, pieces: list[bytes]) -> list[bytes | Overlong]:
    return [frame for piece in pieces for frame in framer.feed(piece)] + framer.end()


def lines_of(data: bytes, *, limit: int) -> list[bytes | Overlong]:
    """Return the lines of the complete data."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line if len(line) <= limit else Overlong(line[:PREFIX_BYTES], line[-SUFFIX_BYTES:]) for line in lines]


places = st.lists(st.integers(min_value=0, max_value=10 * LIMIT), max_size=12)
output = st.lists(st.sampled_from([b"\n", b"\r\n", b"{", b"\xff", b"\x00", b'"id":7', b"\xc3\xa9"])).map(b"".join)
long_lines = st.lists(
    st.integers(min_value=-2, max_value=2).map(lambda more: b"x" * (LIMIT + more)) | st.just(b"y") | st.just(b""),
    max_size=5,
).map(b"\n".join)
endings = st.sampled_from([b"", b"\n"])


@given(data=st.binary() | output, places=places)
def test_any_bytes_cut_anywhere_give_the_lines_of_the_whole(data: bytes, places: list[int]) -> None:
    assert frames_of(LineFramer(), cuts_of(data, places)) == lines_of(data, limit=LIMIT)


@given(data=long_lines, ending=endings, places=places)
def test_lines_at_the_limit_are_accepted_and_longer_ones_refused_wherever_they_are_cut(
    data: bytes, ending: bytes, places: list[int]
) -> None:
    data += ending

    assert frames_of(LineFramer(LIMIT), cuts_of(data, places)) == lines_of(data, limit=LIMIT)


@given(data=output, limit=st.integers(min_value=0, max_value=8), places=places)
def test_a_tiny_limit_is_kept_too(data: bytes, limit: int, places: list[int]) -> None:
    lines = lines_of(data, limit=len(data))
    frames = frames_of(LineFramer(limit), cuts_of(data, places))

    assert len(frames) == len(lines)
    for line, frame in zip(lines, frames, strict=True):
        assert isinstance(line, bytes)
        match frame:
            case Overlong(prefix=prefix, suffix=suffix):
                assert len(line) >= len(prefix) > limit
                assert line.startswith(prefix)
                assert line[-SUFFIX_BYTES:] == suffix
            case _:
                assert frame == line
                assert len(line) <= limit


@given(
    before=st.sampled_from([b"", b"one\n"]), length=st.integers(min_value=0, max_value=2 * LIMIT), data=st.data()
)
def test_every_boundary_of_an_overlong_line_can_be_a_cut(before: bytes, length: int, data: st.DataObject) -> None:
    stream = before + b"x" * length + b"\nafter\n"
    cut = data.draw(st.integers(min_value=0, max_value=len(stream)))

    assert frames_of(LineFramer(LIMIT), [stream[:cut], stream[cut:]]) == lines_of(stream, limit=LIMIT)


def size_of(framer: LineFramer) -> int:
    """Return the number of bytes that a framer keeps in memory."""
    kept = vars(framer).values()
    return sum(
        len(value) if isinstance(value, bytes) else sum(map(len, value))
        for value in kept
        if isinstance(value, bytes | list)
    )


@given(chunks=st.lists(st.binary(max_size=A_CHUNK) | st.just(b"x" * A_CHUNK), max_size=150))
def test_never_more_than_one_line_of_the_allowed_length_and_a_chunk_is_held(chunks: list[bytes]) -> None:
    framer = LineFramer(LIMIT)
    for chunk in chunks:
        framer.feed(chunk)

        assert size_of(framer) <= LIMIT + A_CHUNK


sse = st.lists(
    st.sampled_from(
        [b"data: ", b"data:", b"data", b": ping", b"event: x", b"id: 1", b'{"a":1}', b" ", b"\n", b"\n\n", b"\r\n"]
    ),
    max_size=30,
).map(b"".join)


@given(stream=sse, places=places)
def test_server_sent_events_do_not_depend_on_the_cuts(stream: bytes, places: list[int]) -> None:
    whole, cut = DataFramer(), DataFramer()

    assert [event for piece in cuts_of(stream, places) for event in cut.feed(piece)] == whole.feed(stream)


@given(
    events=st.lists(st.lists(st.sampled_from([b"", b" a", b'{"b":1}', b"data: c", b": d"]), min_size=1)),
    end=st.sampled_from([b"\n", b"\r\n"]),
    noise=st.sampled_from([b"", b": ping\n", b"event: message\r\nid: 7\n", b"\n"]),
    places=places,
)
def test_the_data_of_an_event_comes_out_as_it_was_put_in(
    events: list[list[bytes]], end: bytes, noise: bytes, places: list[int]
) -> None:
    stream = b"".join(noise + b"".join(b"data: " + line + end for line in lines) + end for lines in events)
    framer = DataFramer()

    assert [event for piece in cuts_of(stream, places) for event in framer.feed(piece)] == [
        b"\n".join(lines) for lines in events
    ]
