"""An approval request shows exactly the command that would run, without invisible characters."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.server.sanitize import escape_for_display, one_line
from parley.wire.text import quoted, quoted_command

UNSEEN = {
    "newline": ("\n", r"\n"),
    "carriage return": ("\r", r"\r"),
    "tab": ("\t", r"\t"),
    "escape": ("\x1b", r"\x1b"),
    "delete": ("\x7f", r"\x7f"),
    "next line": ("\x85", r"\u0085"),
    "no-break space": ("\xa0", r"\u00a0"),
    "soft hyphen": ("\xad", r"\u00ad"),
    "grapheme joiner": ("\u034f", r"\u034f"),
    "letter mark": ("\u061c", r"\u061c"),
    "hangul filler": ("\u3164", r"\u3164"),
    "zero width space": ("\u200b", r"\u200b"),
    "zero width joiner": ("\u200d", r"\u200d"),
    "right-to-left mark": ("\u200f", r"\u200f"),
    "line separator": ("\u2028", r"\u2028"),
    "paragraph separator": ("\u2029", r"\u2029"),
    "right-to-left override": ("\u202e", r"\u202e"),
    "word joiner": ("\u2060", r"\u2060"),
    "isolate": ("\u2066", r"\u2066"),
    "braille blank": ("\u2800", r"\u2800"),
    "byte order mark": ("\ufeff", r"\ufeff"),
    "variation selector": ("\ufe0f", r"\ufe0f"),
    "half a pair": ("\ud800", r"\ud800"),
    "tag": ("\U000e0041", r"\U000e0041"),
    "variation selector 17": ("\U000e0100", r"\U000e0100"),
    "private use": ("\ue000", r"\ue000"),
}

BACKTICK = "p`, inside the sandbox, harmless? (`"
"""A directory whose name would end the sentence of an approval request and begin another sentence."""


@pytest.mark.parametrize(
    "argv",
    [
        ("git", "init", "--quiet", "repo dir"),
        ("bash", "-c", "echo x > a"),
        ("echo", "it's", "", "a\\nb", "größe", "日本", "🙂"),
    ],
)
def test_visible_words_are_quoted_as_usual(argv: tuple[str, ...]) -> None:
    assert quoted_command(argv) == shlex.join(argv)


@pytest.mark.parametrize(("character", "spelled"), UNSEEN.values(), ids=UNSEEN)
def test_invisible_characters_are_escaped(character: str, spelled: str) -> None:
    assert quoted_command(("echo", f"a'{character}\\b")) == f"echo $'a\\'{spelled}\\\\b'"
    assert quoted(f"/a {character}") == f"$'/a {spelled}'"
    assert one_line(f"because {character}") == f"because {spelled}"


def test_a_backtick_is_spelled_out_in_words_and_paths_and_not_in_reasons() -> None:
    spelled = r"$'p\x60, inside the sandbox, harmless? (\x60'"

    assert quoted_command(("touch", BACKTICK)) == f"touch {spelled}"
    assert quoted(BACKTICK) == spelled
    assert (one_line(BACKTICK), escape_for_display(BACKTICK)) == (BACKTICK, BACKTICK)


def test_a_path_that_can_be_seen_is_shown_as_it_is() -> None:
    assert quoted("/with blank/größe") == "/with blank/größe"


def test_a_line_end_and_the_letters_it_is_spelled_with_look_different() -> None:
    assert quoted_command(("bash", "-c", "echo a\nrm b")) == r"bash -c $'echo a\nrm b'"
    assert quoted_command(("bash", "-c", r"echo a\nrm b")) == r"bash -c 'echo a\nrm b'"


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
"""Generates words of a command. Surrogate halves are left out, because they cannot be encoded."""


@given(argv=st.lists(words, min_size=1, max_size=30))
def test_a_shell_reads_back_exactly_what_would_run(argv: list[str]) -> None:
    script = f"printf '%s\\0' {quoted_command(argv)}"
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    read = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env=env, timeout=90)

    assert read.stdout.decode().split("\0")[:-1] == argv


@given(argv=st.lists(st.text(st.characters(exclude_categories=[])), min_size=1))
def test_nothing_that_is_shown_is_a_control_character(argv: list[str]) -> None:
    for shown in (quoted_command(argv), quoted(argv[0]), one_line(argv[0])):
        assert shown.isprintable()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", None),
        (" \n\t ", None),
        ("  use the other branch\n", "use the other branch"),
        ("first\n\tthen\r\nlast", "first\n\tthen\\r\nlast"),
        ("\x1b[2Jgone\u202e", "\\x1b[2Jgone\\u202e"),
        ("x" * 2000, "x" * 2000),
        ("x" * 2001, "x" * 2000 + "…"),
    ],
)
def test_control_characters_are_removed_from_a_reason(said: str, expected: str | None) -> None:
    assert escape_for_display(said) == expected
