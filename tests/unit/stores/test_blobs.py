"""A body without its blobs can be restored exactly."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.stores.blob_sizes import MIN_BLOB_CHARACTERS
from parley.stores.blobs import cut, decompress, restore

LONG = b64encode(bytes(range(256)) * 20)


def back(body: bytes) -> bytes:
    rest, cuts = cut(body)
    return restore(rest, [(one.offset, decompress(one.blob.data)) for one in cuts])


PIECES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        (
            b'"',
            b"=",
            b"==",
            b",",
            b"A",
            b"AB",
            b"/",
            b"\\u00e4",
            b"A" * (MIN_BLOB_CHARACTERS - 1),
            b"B" * MIN_BLOB_CHARACTERS,
        )
    ),
    st.integers(MIN_BLOB_CHARACTERS - 3, MIN_BLOB_CHARACTERS + 9).map(lambda length: LONG[:length]),
    st.binary(min_size=3070, max_size=3080).map(b64encode),
)


@given(st.lists(PIECES, max_size=8).map(b"".join))
@settings(deadline=None)
def test_any_body_comes_back_byte_for_byte(body: bytes) -> None:
    assert back(body) == body


@pytest.mark.parametrize("end", [b"", b"A", b"AB", b"ABC", b"=", b"==", b"AB==", b"AAB=", b"AA==", b"AAA="])
def test_a_long_run_comes_back_whatever_its_end(end: bytes) -> None:
    body = b'"' + b"A" * MIN_BLOB_CHARACTERS + end + b'"'

    assert back(body) == body


def test_a_long_run_is_cut_out_and_its_bytes_are_kept() -> None:
    image = bytes(range(256)) * 20
    rest, (one,) = cut(b'{"url":"data:image/png;base64,' + b64encode(image) + b'"}')

    assert rest == b'{"url":"data:image/png;base64,"}'
    assert (one.offset, one.blob.size, decompress(one.blob.data)) == (30, len(image), image)


def test_the_shortest_run_is_found_wherever_it_begins() -> None:
    places = (
        *range(0, MIN_BLOB_CHARACTERS, 127),
        *range(MIN_BLOB_CHARACTERS // 2 - 2, MIN_BLOB_CHARACTERS // 2 + 2),
    )
    bodies = [b'"' * place + LONG[:MIN_BLOB_CHARACTERS] + b'"' for place in places]

    assert [cut(body)[0] for body in bodies] == [b'"' * (place + 1) for place in places]


def test_the_same_bytes_are_the_same_blob() -> None:
    (first,), (second,) = (cut(before + LONG)[1] for before in (b'"', b'{"other":"'))

    assert first.blob == second.blob


@pytest.mark.parametrize(
    "body", [b"", LONG[: MIN_BLOB_CHARACTERS - 1], b"words and words " * 1000, b"[" + b"1," * 5000 + b"1]"]
)
def test_short_runs_and_other_text_stay_in_the_body(body: bytes) -> None:
    assert cut(body) == (body, [])


def test_runs_that_are_just_too_short_cost_no_more_than_others() -> None:
    """A search that restarts at each of their letters would take minutes."""
    body = (LONG[: MIN_BLOB_CHARACTERS - 1] + b",") * 500

    assert cut(body) == (body, [])
