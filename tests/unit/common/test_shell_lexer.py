"""The commands and words of shell scripts; `tests/property/test_shell_lexer.py` compares them with real shells."""

from __future__ import annotations

import pytest

from parley.common.shell_lexer import Word, commands_in, words_of


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("cat a | wc -l; ls", [("cat", "a"), ("wc", "-l"), ("ls",)]),
        ("cat 'a b'\"c\"", [("cat", "a bc")]),
        ("ls\n\npwd\n", [("ls",), ("pwd",)]),
        ("", []),
    ],
)
def test_plain_words_and_operators_are_understood(script: str, commands: list[tuple[str, ...]]) -> None:
    assert commands_in(script) == commands
    assert commands_in(script, words_only=True) == commands


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("cat a 2>/dev/null", [("cat", "a")]),
        ("ls 2>&1 | wc", [("ls",), ("wc",)]),
        ('grep "a\\.b" f', [("grep", "a\\.b", "f")]),
        ("git diff HEAD~1 HEAD^", [("git", "diff", "HEAD~1", "HEAD^")]),
    ],
)
def test_redirections_escapes_and_revisions_are_more_than_words(
    script: str, commands: list[tuple[str, ...]]
) -> None:
    assert commands_in(script) == commands
    assert commands_in(script, words_only=True) is None


@pytest.mark.parametrize(
    "script", ["echo $HOME", "cat > f", "a &", "a &&", "; a", "a\\ b", "ls # all", "echo 'x", "a\x00", "cat =f"]
)
def test_any_other_script_is_not_understood(script: str) -> None:
    assert commands_in(script) is None


def test_the_words_of_any_script_keep_their_source() -> None:
    assert words_of("a\\ b 'c d'") == [Word("a\\ b", "a b"), Word("'c d'", "c d")]
    assert words_of("it's open") == [Word("it's", "it's"), Word("open", "open")]
