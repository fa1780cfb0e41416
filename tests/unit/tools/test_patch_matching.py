"""The positions at which the chunks of a patch match a file, and the errors if they do not match."""

from __future__ import annotations

import sys
import time

import pytest

from kit.builders.trees import patch
from parley.tools.errors import PatchNotApplied
from parley.tools.patch.deadline import CancelToken, Deadline
from parley.tools.patch.matching import apply_chunks
from parley.tools.patch.parser import UpdateFile, parse

CPU_SECONDS = 10
"""The maximum CPU time of one test, in seconds. A search without a deadline takes minutes."""

BLOCK = 4096
"""The maximum number of lines that are processed between two checks of the deadline."""


def changed(
    content: str | bytes, *lines: str, deadline: Deadline | None = None, max_wanted: int = sys.maxunicode
) -> bytes:
    """Return the file after an update with these lines."""
    (hunk,) = parse(patch("*** Update File: a.txt", *lines))
    assert isinstance(hunk, UpdateFile)
    before = content.encode() if isinstance(content, str) else content
    return apply_chunks(
        before, hunk.chunks, path="/work/a.txt", deadline=deadline or Deadline(), max_wanted=max_wanted
    )


def refusal(content: str, *lines: str) -> str:
    with pytest.raises(PatchNotApplied) as refused:
        changed(content, *lines)
    return str(refused.value)


# --- positions -----------------------------------------------------------------------------------


def test_a_chunk_goes_to_the_first_place_that_fits() -> None:
    assert changed("a\nb\na\nb\n", "-a", "+A", " b") == b"A\nb\na\nb\n"


def test_each_chunk_is_searched_after_the_one_before() -> None:
    assert changed("a\nb\na\nb\n", "@@", "-a", "+A", "@@", "-a", "+B") == b"A\nb\nB\nb\n"


def test_lines_that_begin_again_within_themselves_are_found() -> None:
    assert changed("a\na\nb\na\na\nb\na\na\nc\n", *(f"-{line}" for line in "aabaac")) == b"a\na\nb\n"


def test_a_chunk_that_is_part_of_another_is_found() -> None:
    assert changed("x\ny\nx\ny\nz\n", "@@", "-y", "@@", "-x", "-y", "-z") == b"x\n"


def test_a_chunk_that_stands_before_the_one_before_it_is_not_found() -> None:
    assert refusal("a\nb\n", "@@", "-b", "@@", "-a") == 'error: Failed to find expected lines ["a"] in /work/a.txt'


def test_a_context_line_moves_the_search_after_it() -> None:
    content = "class A:\n  x = 1\nclass B:\n  x = 1\n"

    assert changed(content, "@@ class B:", "-  x = 1", "+  x = 2") == b"class A:\n  x = 1\nclass B:\n  x = 2\n"


def test_several_context_lines_are_looked_for_one_after_the_other() -> None:
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


def test_an_exact_match_wins_over_an_earlier_approximate_one() -> None:
    assert changed("  a\na\n", "-a", "+b") == b"  a\nb\n"
    assert changed("  a\na \n", "-a", "+b") == b"  a\nb\n"
    assert changed("“a”\n  'x'\n  \"a\"\n", '-"a"', "+b") == "“a”\n  'x'\nb\n".encode()


def test_unchanged_lines_stay_as_the_file_has_them() -> None:
    assert changed("\tkept \nold\n", " kept", "-old", "+new") == b"\tkept \nnew\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["-nothing like this", "+x"], '["nothing like this"] in /work/a.txt'),
        ([" a", '-say "é"\t', "+x"], '["a", "say \\"é\\"\\t"] in /work/a.txt'),
    ],
)
def test_lines_that_are_not_there_are_named(lines: list[str], expected: str) -> None:
    assert refusal("a\nb\n", *lines) == f"error: Failed to find expected lines {expected}"


def test_of_many_lines_that_are_not_there_the_first_are_named() -> None:
    named = ", ".join(f'"{number}"' for number in range(20))

    assert refusal("a\n", *(f"-{number}" for number in range(25))) == (
        f"error: Failed to find expected lines [{named}] and 5 more in /work/a.txt"
    )


def test_a_context_that_is_not_there_is_named() -> None:
    message = refusal("a\n", "@@ no such context", "-a", "+b")

    assert message == "error: Failed to find context 'no such context' in /work/a.txt"


def test_a_patch_with_too_many_distinct_lines_is_refused() -> None:
    lines = ("@@ a", "-b", "-b", "+x", "+y", " c")
    assert changed("a\nb\nb\nc\n", *lines, max_wanted=3) == b"a\nx\ny\nc\n"

    with pytest.raises(PatchNotApplied) as refused:
        changed("a\nb\nb\nc\n", *lines, max_wanted=2)
    assert str(refused.value) == (
        "error: the patch has more than 2 distinct context and removed lines for /work/a.txt; "
        "split it into smaller patches"
    )


# --- unchanged lines -----------------------------------------------------------------------------


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
def test_a_requested_line_end_is_written(content: bytes, lines: list[str], expected: bytes) -> None:
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


# --- running time --------------------------------------------------------------------------------


class CountingDeadline(Deadline):
    """A deadline that counts its checks."""

    checks = 0

    def check(self) -> None:
        self.checks += 1
        super().check()


def test_a_patch_that_nearly_fits_everywhere_is_searched_in_linear_time() -> None:
    started_at = time.thread_time()
    with pytest.raises(PatchNotApplied) as refused:
        # All old lines occur in the file, but in the wrong order.
        changed("y\n" * 100_000 + "x\n" * 100_000, *["-x"] * 50_000, *["-y"] * 50_000, deadline=Deadline(600))
    assert str(refused.value).startswith("error: Failed to find expected lines")

    blocks = ("x\n" * 49_999 + "y\n") * 5
    left = changed(blocks + "x\n" * 50_000 + "y\n", *["-x"] * 50_000, deadline=Deadline(seconds=600))
    assert left == f"{blocks}y\n".encode()

    assert time.thread_time() - started_at < CPU_SECONDS


def test_the_deadline_is_checked_before_each_block_of_a_large_file() -> None:
    size = 100_000
    deadline = CountingDeadline(seconds=60)

    assert changed("x\n" * size + "y\n", "-y", deadline=deadline) == b"x\n" * size
    assert deadline.checks > size / BLOCK


def test_the_deadline_is_checked_before_each_block_of_a_large_patch() -> None:
    size = 100_000
    deadline = CountingDeadline(seconds=60)

    with pytest.raises(PatchNotApplied, match="Failed to find expected lines"):
        changed("x\n", *(f"-{number}" for number in range(size)), deadline=deadline)

    # The old lines are collected once. At each of the four levels, they are numbered, encoded and counted.
    assert deadline.checks > (1 + 4 * 3) * size / BLOCK


def test_many_chunks_that_fit_only_at_the_third_level_are_found() -> None:
    size = 5000
    content = "".join(f"  a{n}\n  b{n}\n" for n in range(size)) + "".join(f"b{n}\na{n}\n" for n in range(size))
    chunks = [line for n in range(size) for line in ("@@", f"-a{n}", f"-b{n}")]

    left = changed(content, *chunks, deadline=Deadline(seconds=60))

    assert left.decode() == "".join(f"b{n}\na{n}\n" for n in range(size))


def test_many_context_lines_that_are_the_same_are_found_one_after_another() -> None:
    left = changed("x\n" * 20_000, *["@@ x"] * 10_000, "-x", "+y", deadline=Deadline(seconds=60))

    assert left == b"x\n" * 10_000 + b"y\n" + b"x\n" * 9_999


def test_matching_ends_when_its_time_is_over() -> None:
    with pytest.raises(PatchNotApplied) as refused:
        changed("a\n", "-a", deadline=Deadline(seconds=-1))

    assert str(refused.value) == "error: the patch takes too long to match; make it smaller"


def test_matching_ends_when_it_is_cancelled() -> None:
    cancel = CancelToken()
    deadline = Deadline(cancel=cancel)
    changed("a\n", "-a", deadline=deadline)
    cancel.cancel()

    with pytest.raises(PatchNotApplied) as refused:
        changed("a\n", "-a", deadline=deadline)

    assert str(refused.value) == "error: interrupted"
