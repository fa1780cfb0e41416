"""The diff of any two texts turns one into the other, and is as short as possible."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kit.builders.diffs import changed_lines
from kit.system.git import git
from parley.tools.patch.diffs import STEPS, Effort, unified_diff

with_git = settings(deadline=None, max_examples=30)

words = st.sampled_from(
    ["", "a", "b", "  }", "\r", "a\r", "\N{LINE SEPARATOR}", "ä", "-- a", "++ b", "@@ -1 +1 @@", "\\"]
)
texts = st.builds(
    lambda lines, end: ("\n".join(lines) + end).encode(), st.lists(words, max_size=30), st.sampled_from(["", "\n"])
)
contexts = st.integers(min_value=0, max_value=4)


def lines_of(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def applied(before: str, diff: str) -> str:
    """Apply a diff strictly: every line and every number must match."""
    old, new = lines_of(before), []
    at = 0
    for hunk in re.split(r"(?m)^(?=@@ )", diff)[1:]:
        header, *body = lines_of(hunk.replace("\n\\ No newline at end of file\n", "\0"))
        match = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n", header)
        assert match is not None
        body = [part for line in body for part in re.findall(r"[^\0]+\0?", line)]
        start, count, new_start, new_count = (int(group or "1") for group in match.groups())
        expected = [line[1:].replace("\0", "") for line in body if line[0] in " -"]
        shown = [line[1:].replace("\0", "") for line in body if line[0] in " +"]
        assert (count, new_count) == (len(expected), len(shown))
        first = start - 1 if count else start
        new += old[at:first]
        assert len(new) == (new_start - 1 if new_count else new_start)
        assert old[first : first + count] == expected
        new += shown
        at = first + count
    return "".join(new + old[at:])


def reversed_diff(diff: str) -> str:
    """Return the reversed diff."""
    swapped = {"+": "-", "-": "+"}
    lines = [
        re.sub(r"@@ -(\S+) \+(\S+) @@", r"@@ -\2 +\1 @@", line) if line.startswith("@@") else line
        for line in lines_of(diff)
    ]
    return "".join(line if line.startswith("@@") else swapped.get(line[0], line[0]) + line[1:] for line in lines)


def fewest_changes(before: str, after: str) -> int:
    """Return the least number of changes, by the table of longest common subsequences."""
    old, new = lines_of(before), lines_of(after)
    row = [0] * (len(new) + 1)
    for line in old:
        last, row = row, [0]
        for column, other in enumerate(new):
            row.append(last[column] + 1 if line == other else max(last[column + 1], row[column]))
    return len(old) + len(new) - 2 * row[-1]


@given(before=texts, after=texts, context=contexts)
def test_a_diff_turns_one_text_into_the_other_and_back(before: bytes, after: bytes, context: int) -> None:
    diff = unified_diff(before, after, context=context)

    assert applied(before.decode(), diff) == after.decode()
    assert applied(after.decode(), reversed_diff(diff)) == before.decode()


@given(before=texts, after=texts)
def test_no_diff_is_shorter(before: bytes, after: bytes) -> None:
    effort = Effort()

    diff = unified_diff(before, after, context=3, effort=effort)

    assert not effort.cut
    assert changed_lines(diff) == fewest_changes(before.decode(), after.decode())


@given(before=texts, after=texts, context=contexts, steps=st.integers(min_value=0, max_value=600))
def test_a_diff_that_was_cut_short_applies_as_well(before: bytes, after: bytes, context: int, steps: int) -> None:
    effort = Effort(steps)

    diff = unified_diff(before, after, context=context, effort=effort)

    assert applied(before.decode(), diff) == after.decode()
    if not effort.cut:
        assert changed_lines(diff) == fewest_changes(before.decode(), after.decode())


@given(before=st.binary(max_size=60), after=st.binary(max_size=60))
def test_bytes_that_are_no_text_differ_by_line_all_the_same(before: bytes, after: bytes) -> None:
    diff = unified_diff(before, after, context=3)

    as_bytes = fewest_changes(before.decode("latin-1"), after.decode("latin-1"))
    assert changed_lines(diff) == as_bytes


@given(lines=st.lists(words, min_size=1, max_size=30), times=st.integers(min_value=1, max_value=40))
def test_one_line_more_in_a_long_text_costs_next_to_nothing(lines: list[str], times: int) -> None:
    text = ("\n".join(lines) + "\n").encode() * times
    effort = Effort()

    unified_diff(text, text + b"one more\n", context=3, effort=effort)

    assert STEPS - effort.left < 20


@with_git
@given(before=texts, after=texts, context=st.sampled_from([1, 3]))
def test_git_applies_the_diff(before: bytes, after: bytes, context: int) -> None:
    assume(before != after and before and after)
    diff = "--- a/file\n+++ b/file\n" + unified_diff(before, after, context=context)

    with TemporaryDirectory() as folder:
        file = Path(folder, "file")
        file.write_bytes(before)
        git("apply", "--whitespace=nowarn", f"-C{context}", "-", cwd=Path(folder), stdin=diff.encode())

        assert file.read_bytes() == after
