"""Where chunks are put, and what stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.builders.trees import patch
from parley.tools.errors import PatchRefused
from parley.tools.patch.grammar import UpdateFile, parse
from parley.tools.patch.matching import apply_chunks
from parley.tools.patch.patience import Deadline, Wanted


def changed(content: str | bytes, *lines: str, deadline: Deadline | None = None) -> bytes:
    """The file after an update of these lines."""
    (hunk,) = parse(patch("*** Update File: a.txt", *lines))
    assert isinstance(hunk, UpdateFile)
    before = content.encode() if isinstance(content, str) else content
    return apply_chunks(before, hunk.chunks, path="/work/a.txt", deadline=deadline or Deadline())


def refusal(content: str, *lines: str) -> str:
    with pytest.raises(PatchRefused) as refused:
        changed(content, *lines)
    return str(refused.value)


# --- the place ---------------------------------------------------------------------------


def test_a_chunk_goes_to_the_first_place_that_fits() -> None:
    assert changed("a\nb\na\nb\n", "-a", "+A", " b") == b"A\nb\na\nb\n"


def test_each_chunk_is_searched_behind_the_one_before() -> None:
    assert changed("a\nb\na\nb\n", "@@", "-a", "+A", "@@", "-a", "+B") == b"A\nb\nB\nb\n"


def test_lines_that_begin_again_within_themselves_are_found() -> None:
    assert changed("a\na\nb\na\na\nb\na\na\nc\n", *(f"-{line}" for line in "aabaac")) == b"a\na\nb\n"


def test_a_chunk_that_is_part_of_another_is_found() -> None:
    assert changed("x\ny\nx\ny\nz\n", "@@", "-y", "@@", "-x", "-y", "-z") == b"x\n"


def test_a_chunk_that_stands_before_the_one_before_it_is_not_found() -> None:
    assert refusal("a\nb\n", "@@", "-b", "@@", "-a") == 'error: Failed to find expected lines ["a"] in /work/a.txt'


def test_a_context_line_moves_the_search_behind_it() -> None:
    content = "class A:\n  x = 1\nclass B:\n  x = 1\n"

    assert changed(content, "@@ class B:", "-  x = 1", "+  x = 2") == b"class A:\n  x = 1\nclass B:\n  x = 2\n"


def test_several_context_lines_are_looked_for_one_behind_the_other() -> None:
    content = "def f\n x\nclass B\ndef f\n x\n"

    assert changed(content, "@@ class B", "@@ def f", "- x", "+ y") == b"def f\n x\nclass B\ndef f\n y\n"


def test_lines_said_to_be_the_last_are_looked_for_at_the_end_alone() -> None:
    assert changed("a\nb\na\n", "-a", "+A", "*** End of File") == b"a\nb\nA\n"
    assert refusal("a\nb\n", "-a", "*** End of File") == 'error: Failed to find expected lines ["a"] in /work/a.txt'


def test_a_chunk_that_only_adds_goes_to_the_end() -> None:
    assert changed("a\nb\n", "@@ a", "+c", "@@", "-b", "+B") == b"a\nB\nc\n"


def test_an_empty_line_that_parts_two_hunks_is_not_held_against_the_file() -> None:
    assert changed("a\nb\n", "@@", "-a", "+A", "") == b"A\nb\n"
    assert changed("a\n\nb\n", "@@", "+c", "") == b"a\n\nb\nc\n"


def test_an_empty_line_at_the_end_of_a_chunk_counts_where_the_file_has_it() -> None:
    assert changed("a\nb\na\n\n", "@@", "-a", "+A", "") == b"a\nb\nA\n\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("x  \n", "x"),
        ("x\n", "x \t"),
        ("\tx\n", "    x"),
        ("  “it’s” — a\u00a0b\n", '"it\'s" - a b'),
        ('"it\'s" - a b\n', "“it’s” – a\u2003b"),
    ],
)
def test_blanks_and_typographic_characters_may_differ(content: str, line: str) -> None:
    assert changed(content, f"-{line}", "+y") == b"y\n"


def test_what_fits_exactly_wins_over_what_fits_nearly_and_comes_first() -> None:
    assert changed("  a\na\n", "-a", "+b") == b"  a\nb\n"
    assert changed("  a\na \n", "-a", "+b") == b"  a\nb\n"
    assert changed("“a”\n  'x'\n  \"a\"\n", '-"a"', "+b") == "“a”\n  'x'\nb\n".encode()


def test_unchanged_lines_stay_as_the_file_has_them() -> None:
    assert changed("\tkept \nold\n", " kept", "-old", "+new") == b"\tkept \nnew\n"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["-nothing like this", "+x"], '["nothing like this"] in /work/a.txt'),
        ([" a", '-say "é"\t', "+x"], '["a", "say \\"é\\"\\t"] in /work/a.txt'),
    ],
)
def test_lines_that_are_not_there_are_named(lines: list[str], told: str) -> None:
    assert refusal("a\nb\n", *lines) == f"error: Failed to find expected lines {told}"


def test_of_many_lines_that_are_not_there_the_first_are_named() -> None:
    named = ", ".join(f'"{number}"' for number in range(20))

    assert refusal("a\n", *(f"-{number}" for number in range(25))) == (
        f"error: Failed to find expected lines [{named}] and 5 more in /work/a.txt"
    )


def test_a_context_that_is_not_there_is_named() -> None:
    told = refusal("a\n", "@@ no such context", "-a", "+b")

    assert told == "error: Failed to find context 'no such context' in /work/a.txt"


# --- what is kept ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"one\r\ntwo\r\n", ["-two", "+TWO"], b"one\r\nTWO\r\n"),
        (b"one\r\ntwo\r\n", [" one", "+more", " two"], b"one\r\nmore\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", ["+zero", " one"], b"zero\r\none\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", ["@@", "+three"], b"one\r\ntwo\r\nthree\r\n"),
        (b"a\r\nb\nc\r\n", ["-a", "-b", "+A", "+B", "+X"], b"A\r\nB\nX\nc\r\n"),
        (b"a\r\nb\nc\r\n", [" a", "+x", " b", "+y", " c"], b"a\r\nx\r\nb\ny\nc\r\n"),
    ],
)
def test_line_ends_are_kept_and_new_lines_take_those_around_them(
    content: bytes, lines: list[str], expected: bytes
) -> None:
    assert changed(content, *lines) == expected


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"a\nb\n", ["-a", "+A\r", "+X"], b"A\r\nX\nb\n"),
        (b"a\r\nb\r\n", ["-a", "+A\r", "+X"], b"A\r\nX\r\nb\r\n"),
        (b"a\nb\n", [" a\r", "-b\r", "+B"], b"a\nB\n"),
        (b"a\n", ["@@ a\r", "+b\r"], b"a\nb\r\n"),
        (b"", ["@@", "+a\r"], b"a\r\n"),
    ],
)
def test_a_line_end_that_is_asked_for_is_given(content: bytes, lines: list[str], expected: bytes) -> None:
    assert changed(content, *lines) == expected


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"a\nb", ["-b", "+B"], b"a\nB"),
        (b"a\nb", ["-a", "+A"], b"A\nb"),
        (b"a\nb", [" b", "+c"], b"a\nb\nc"),
        (b"a\nb", ["@@", "+c"], b"a\nb\nc"),
        (b"a\r\nb", [" b", "+c"], b"a\r\nb\r\nc"),
        (b"a\r\nb", [" a", "-b"], b"a"),
        (b"a\r\nb\r", ["-a", "+A"], b"A\r\nb\r"),
        (b"a", ["-a"], b""),
        (b"a\n", ["-a"], b""),
        (b"", ["@@", "+a"], b"a\n"),
    ],
)
def test_a_missing_line_feed_at_the_end_stays_missing(content: bytes, lines: list[str], expected: bytes) -> None:
    assert changed(content, *lines) == expected


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_neither_looked_at_nor_lost(mark: str) -> None:
    assert changed("\ufeffone\ntwo\n", f"-{mark}one", f"+{mark}ONE") == "\ufeffONE\ntwo\n".encode()


def test_a_byte_order_mark_may_be_all_that_is_left() -> None:
    assert changed("\ufeffone\n", "-one") == "\ufeff".encode()


def test_bytes_that_are_not_utf_8_come_out_as_they_went_in() -> None:
    assert changed(b"caf\xe9\nold\n\xff\xfe\x00\n", "-old", "+n\u00e9w") == b"caf\xe9\nn\xc3\xa9w\n\xff\xfe\x00\n"


# --- how long it takes -------------------------------------------------------------------


def steps_of(content: str, *lines: str) -> int:
    deadline = Deadline(seconds=60)
    try:
        changed(content, *lines, deadline=deadline)
    except PatchRefused:
        pass
    return deadline.steps


def almost_everywhere(size: int) -> int:
    """A run of lines that fits nearly at every place, and nowhere."""
    return steps_of("x\n" * size, *["-x"] * (size // 2), "-y")


def many_near_misses(size: int) -> int:
    """Chunks that fail at three levels although each of their lines is in the file as it is."""
    content = "".join(f"  a{n}\n  b{n}\n" for n in range(size)) + "".join(f"b{n}\na{n}\n" for n in range(size))
    return steps_of(content, *(line for n in range(size) for line in ("@@", f"-a{n}", f"-b{n}")))


def many_contexts(size: int) -> int:
    return steps_of("x\n" * size, *["@@ x"] * (size // 2), "-x")


@pytest.mark.parametrize("family", [almost_everywhere, many_near_misses, many_contexts])
def test_twice_as_much_to_match_takes_twice_as_many_steps(family: Callable[[int], int]) -> None:
    assert family(4000) <= 2.1 * family(2000)


def test_matching_ends_when_its_time_is_over() -> None:
    with pytest.raises(PatchRefused) as refused:
        changed("a\n", "-a", deadline=Deadline(seconds=-1))

    assert str(refused.value) == "error: the patch takes too long to match; make it smaller"


def test_matching_ends_when_nobody_waits_for_it_any_more() -> None:
    wanted = Wanted()
    deadline = Deadline(wanted=wanted)
    changed("a\n", "-a", deadline=deadline)
    wanted.give_up()

    with pytest.raises(PatchRefused) as refused:
        changed("a\n", "-a", deadline=deadline)

    assert str(refused.value) == "error: interrupted"
