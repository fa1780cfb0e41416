"""Long texts on the whole screen."""

from __future__ import annotations

from parley.cli.chat.pager import StyledLine, as_rich_text, diff_lines, wrapped


def test_the_lines_of_a_diff_have_styles_and_no_control_characters() -> None:
    diff = "--- a\n+++ b\n@@ -1 +1 @@\n-old\r\n+new\t\x1b[31m\n same\n"

    assert list(diff_lines(diff)) == [
        StyledLine("bold", "--- a"),
        StyledLine("bold", "+++ b"),
        StyledLine("cyan", "@@ -1 +1 @@"),
        StyledLine("red", "-old"),
        StyledLine("green", "+new    \\x1b[31m"),
        StyledLine("", " same"),
    ]
    assert as_rich_text([StyledLine("red", "-old"), StyledLine("", " same")]).plain == "-old\n same"


def test_changed_lines_that_look_like_headers_are_styled_as_changes() -> None:
    diff = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n--- guard\n+++ x\n"

    assert [style for style, _ in diff_lines(diff)] == ["", "bold", "bold", "cyan", "red", "green"]


def test_long_and_wide_lines_continue_in_the_next_row() -> None:
    lines = [StyledLine("red", "abcdefg"), StyledLine("", "日本語x"), StyledLine("", "")]

    assert wrapped(lines, 4) == [
        StyledLine("red", "abcd"),
        StyledLine("red", "efg"),
        StyledLine("", "日本"),
        StyledLine("", "語x"),
        StyledLine("", ""),
    ]
