"""Patches as hunks, and errors for text that is not a patch."""

from __future__ import annotations

import pytest

from kit.builders.trees import patch
from parley.tools.errors import PatchNotApplied
from parley.tools.patch.deadline import CancelToken
from parley.tools.patch.parser import AddFile, Chunk, DeleteFile, Line, UpdateFile, parse


def refusal(text: str) -> str:
    with pytest.raises(PatchNotApplied) as refused:
        parse(text)
    return str(refused.value)


def test_all_kinds_of_hunk_are_read_in_order() -> None:
    text = patch(
        "*** Add File: new.txt",
        "+one",
        "+",
        "+ two",
        "*** Delete File: gone.txt",
        "*** Update File: src/old.py",
        "*** Move to: src/new.py",
        " kept",
        "-removed",
        "@@ class A",
        "@@   def f",
        "+added",
        " ",
        "*** End of File",
    )

    assert parse(text) == (
        AddFile("new.txt", ("one", "", " two")),
        DeleteFile("gone.txt"),
        UpdateFile(
            "src/old.py",
            "src/new.py",
            (
                Chunk((), ((" ", "kept"), ("-", "removed")), False, 0),
                Chunk(("class A", "  def f"), (("+", "added"), (" ", "")), True, 0),
            ),
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "\n *** Begin Patch \n*** Delete File: a \n*** End Patch\t\n\n",
        "*** Begin Patch\r\n*** Delete File: a\r\n*** End Patch\r\n",
        "*** Begin Patch\n\n  *** Delete File:  a\n\n*** End Patch",
        "<<'EOF'\n*** Begin Patch\n*** Delete File: a\n*** End Patch\nEOF",
        '<<"EOF"\n*** Begin Patch\n*** Delete File: a\n*** End Patch\nEOF\n',
        "<<END\n*** Begin Patch\n*** Delete File: a\n*** End Patch\nEND",
    ],
)
def test_blanks_around_markers_and_a_heredoc_around_it_all_do_not_matter(text: str) -> None:
    assert parse(text) == (DeleteFile("a"),)


def test_a_patch_may_have_no_hunks() -> None:
    assert parse(patch()) == ()


def test_empty_lines_are_unchanged_lines_and_known_where_they_end_a_chunk() -> None:
    text = patch("*** Update File: a", "@@", "-x", "", "+y", "", "", "*** Delete File: b")
    lines: tuple[Line, ...] = (("-", "x"), (" ", ""), ("+", "y"), (" ", ""), (" ", ""))

    assert parse(text) == (UpdateFile("a", None, (Chunk((), lines, False, 2),)), DeleteFile("b"))


def test_only_line_feeds_part_lines() -> None:
    assert parse(patch("*** Add File: a", "+x\u2028y\x0bz\x85")) == (AddFile("a", ("x\u2028y\x0bz\x85",)),)


def test_carriage_returns_that_are_everywhere_are_no_part_of_any_line() -> None:
    text = patch("*** Add File: a", "+x", "*** Update File: b", "@@ c", "-y", "+z").replace("\n", "\r\n")
    lines: tuple[Line, ...] = (("-", "y"), ("+", "z"))
    hunks = AddFile("a", ("x",)), UpdateFile("b", None, (Chunk(("c",), lines, False, 0),))

    assert parse(text) == hunks
    assert parse(f"{text}\r\n") == hunks
    assert parse(f"<<'EOF'\r\n{text}\r\nEOF\r\n") == hunks


def test_other_carriage_returns_are_a_part_of_added_lines_alone() -> None:
    text = patch("*** Add File: a\r", "+x\r", "+y", "*** Update File: b\r", "@@ c\r", " d\r", "-e\r", "+f\r", "\r")
    lines: tuple[Line, ...] = ((" ", "d"), ("-", "e"), ("+", "f\r"), (" ", ""))

    assert parse(text) == (AddFile("a", ("x\r", "y")), UpdateFile("b", None, (Chunk(("c",), lines, False, 1),)))


def test_reading_ends_when_its_caller_stops_waiting() -> None:
    cancel = CancelToken()
    cancel.cancel()

    with pytest.raises(PatchNotApplied) as refused:
        parse(patch("*** Delete File: a"), cancel=cancel)

    assert str(refused.value) == "error: interrupted"


def test_a_file_may_be_moved_as_it_is() -> None:
    assert parse(patch("*** Update File: a", "*** Move to: b")) == (UpdateFile("a", "b", ()),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "error: invalid patch: The first line of the patch must be '*** Begin Patch'"),
        (
            "*** Update File: old.txt\n@@\n-a\n+b\n*** End Patch",
            "error: invalid patch: The first line of the patch must be '*** Begin Patch'",
        ),
        (
            "*** Begin Patch\n*** Delete File: a",
            "error: invalid patch: The last line of the patch must be '*** End Patch'",
        ),
        ("*** Begin Patch", "error: invalid patch: The last line of the patch must be '*** End Patch'"),
        (
            "<<'EOF'\n*** Begin Patch\n*** End Patch\nEND",
            "error: invalid patch: The first line of the patch must be '*** Begin Patch'",
        ),
    ],
)
def test_the_markers_must_be_there(text: str, expected: str) -> None:
    assert refusal(text) == expected


HEADERS = "Valid hunk headers: '*** Add File: {path}', '*** Delete File: {path}', '*** Update File: {path}'"
EVERY_LINE = "Every line should start with ' ' (context line), '+' (added line), or '-' (removed line)"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["*** Rename File: old.txt"],
            f"invalid hunk at line 2, '*** Rename File: old.txt' is not a valid hunk header. {HEADERS}",
        ),
        (
            ["*** Add File: a", "+x", "y"],
            f"invalid hunk at line 4, 'y' is not a valid hunk header. {HEADERS}",
        ),
        (["*** Add File:"], f"invalid hunk at line 2, '*** Add File:' is not a valid hunk header. {HEADERS}"),
        (["*** Update File: a"], "invalid hunk at line 2, Update file hunk for path 'a' is empty"),
        (["*** Update File: a", "@@"], "invalid hunk at line 3, Update hunk does not contain any lines"),
        (
            ["*** Update File: a", "@@", "*** End of File"],
            "invalid hunk at line 3, Update hunk does not contain any lines",
        ),
        (
            ["*** Update File: a", "@@", "x"],
            f"invalid hunk at line 4, Unexpected line found in update hunk: 'x'. {EVERY_LINE}",
        ),
        (
            ["*** Update File: a", "-x", "y"],
            "invalid hunk at line 4, Expected update hunk to start with a @@ context marker, got: 'y'",
        ),
    ],
)
def test_a_line_that_does_not_fit_is_named(lines: list[str], expected: str) -> None:
    assert refusal(patch(*lines)) == f"error: {expected}"
