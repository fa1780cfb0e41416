"""Hunks have the format of Git, and their cost is limited."""

from __future__ import annotations

import random
import re

import pytest

from kit.builders.diffs import changed_lines, distinct
from parley.tools.patch.diffs import STEPS, Effort, unified_diff


@pytest.mark.parametrize(
    ("before", "after", "diff"),
    [
        (b"", b"", ""),
        (b"same\n", b"same\n", ""),
        (b"", b"new\n", "@@ -0,0 +1 @@\n+new\n"),
        (b"", b"one\ntwo\n", "@@ -0,0 +1,2 @@\n+one\n+two\n"),
        (b"", b"\n", "@@ -0,0 +1 @@\n+\n"),
        (b"gone\n", b"", "@@ -1 +0,0 @@\n-gone\n"),
        (b"a\nb\n", b"", "@@ -1,2 +0,0 @@\n-a\n-b\n"),
        (b"old\n", b"new\n", "@@ -1 +1 @@\n-old\n+new\n"),
        (b"a\nb\nc\nd\ne\n", b"a\nb\nC\nd\ne\n", "@@ -2,3 +2,3 @@\n b\n-c\n+C\n d\n"),
        (b"a\nb\nc\nd\n", b"A\nb\nc\nD\n", "@@ -1,4 +1,4 @@\n-a\n+A\n b\n c\n-d\n+D\n"),
        (b"a\nb\nc\nd\ne\n", b"A\nb\nc\nd\nE\n", "@@ -1,2 +1,2 @@\n-a\n+A\n b\n@@ -4,2 +4,2 @@\n d\n-e\n+E\n"),
        (b"a", b"a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"),
        (b"a\n", b"a", "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n"),
        (b"a\nz", b"b\nz", "@@ -1,2 +1,2 @@\n-a\n+b\n z\n\\ No newline at end of file\n"),
        (b"a\r\nb\r\n", b"a\r\nB\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+B\r\n"),
        (b"a\rb\x0cc\x1cd\n", b"a\rb\n", "@@ -1 +1 @@\n-a\rb\x0cc\x1cd\n+a\rb\n"),
        ("\N{LINE SEPARATOR}x\n".encode(), b"x\n", "@@ -1 +1 @@\n-\N{LINE SEPARATOR}x\n+x\n"),
        (b"\xff\n", b"\xfe\n", "@@ -1 +1 @@\n-\ufffd\n+\ufffd\n"),
        (b"\xc3", b"\xc3\xa4", "@@ -1 +1 @@\n-\ufffd{0}+ä{0}".format("\n\\ No newline at end of file\n")),
    ],
)
def test_a_diff_with_one_line_of_context_reads_like_this(before: bytes, after: bytes, diff: str) -> None:
    assert unified_diff(before, after, context=1) == diff


def test_an_added_twin_is_shown_after_the_one_that_was_there() -> None:
    before, after = b"{\n  x\n}\n", b"{\n  x\n}\n{\n  x\n}\n"

    assert unified_diff(before, after, context=1) == "@@ -3 +3,4 @@\n }\n+{\n+  x\n+}\n"


def test_a_change_slides_down_a_thousand_lines_at_most_and_keeps_its_context() -> None:
    same = b"same\n"

    diff = unified_diff(b"x\na\n" + same * 3_000 + b"end\n", b"y\na\n" + same * 3_001 + b"end\n", context=3)

    first = "@@ -1,4 +1,4 @@\n-x\n+y\n a\n same\n same\n"
    assert diff == first + "@@ -1000,6 +1000,7 @@\n" + " same\n" * 3 + "+same\n" + " same\n" * 3


# --- bounded ---------------------------------------------------------------------------------


@pytest.mark.long
def test_lines_that_the_other_version_has_nowhere_need_no_search() -> None:
    before, after = distinct(), [b"new " + line for line in distinct()]
    effort = Effort()

    diff = unified_diff(b"".join(before), b"".join(after), context=3, effort=effort)

    assert changed_lines(diff) == len(before) + len(after)
    assert not effort.cut


@pytest.mark.long
def test_a_thousand_edits_in_sixteen_mebibytes_are_all_found() -> None:
    before = [b"%039d\n" % number for number in range((16 << 20) // 40)]
    after = list(before)
    places = sorted({0, len(before) - 1, *random.Random(1).sample(range(len(before)), 1_000)})
    for place in places:
        after[place] = b"edited\n"
    effort = Effort()

    diff = unified_diff(b"".join(before), b"".join(after), context=0, effort=effort)

    assert changed_lines(diff) == 2 * len(places)
    assert not effort.cut


@pytest.mark.long
def test_more_lines_than_can_be_compared_are_shown_as_replaced() -> None:
    before, after = b"top\n" + b"a\n" * (4 << 20) + b"end\n", b"top\n" + b"b\n" * (4 << 20) + b"end\n"
    effort = Effort()

    diff = unified_diff(before, after, context=1, effort=effort)

    lines = (4 << 20) + 2
    assert diff == f"@@ -1,{lines} +1,{lines} @@\n top\n" + "-a\n" * (4 << 20) + "+b\n" * (4 << 20) + " end\n"
    assert (effort.cut, effort.left) == (True, STEPS)


def test_lines_that_were_not_compared_are_shown_as_replaced() -> None:
    middle = distinct(3_000)
    before = b"a\nb\nc\nd\n" + b"".join(middle) + b"w\nx\ny\nz\n"
    after = b"a\nb\na\nc\nd\n" + b"".join(middle[::-1]) + b"w\nx\nw\ny\nz\n"
    effort = Effort(40_000)

    diff = unified_diff(before, after, context=0, effort=effort)

    hunks = re.split(r"(?m)^(?=@@)", diff)[1:]
    assert effort.cut
    assert (hunks[0], hunks[-1]) == ("@@ -2,0 +3 @@\n+a\n", "@@ -3006,0 +3008 @@\n+w\n")
    between = [line for hunk in hunks[1:-1] for line in hunk.splitlines()[1:]]
    assert {line[1:12] for line in between} == {"line number"}
