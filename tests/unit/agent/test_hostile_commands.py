"""The time to check a command, to summarize it for display and to search it for a patch is limited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from parley.agent.safe import MAX_CHARACTERS, MAX_COMMANDS, commands_in, is_safe
from parley.ports.tools import RunCommand
from parley.server.sanitize import one_line
from parley.tools.parsed_commands import MAX_SCRIPT, parse
from parley.tools.patch.extract import patch_in
from parley.wire.ids import CallId
from parley.wire.text import quoted_command

Argv = tuple[str, ...]
Family = Callable[[int], str]


def repeated(piece: str, *, before: str = "", after: str = "") -> Family:
    """Return a family of scripts that repeat `piece` up to a given length."""
    return lambda length: before + piece * ((length - len(before + after)) // len(piece)) + after


FAMILIES: Final[dict[str, Family]] = {
    "pipes": repeated("ls | ", after="cat"),
    "commands": repeated("ls\n"),
    "commands with files": repeated("/bin/ls a;"),
    "single quotes": repeated("ls '"),
    "double quotes": repeated('ls "'),
    "pairs of quotes": repeated("''\"\"", before="ls "),
    "quotes left open": repeated("''\"\"", before="ls ", after="'"),
    "escapes": repeated("\\a", before='ls "', after='"'),
    "escapes left open": repeated("\\a", before='ls "'),
    "one long word": repeated("a", before="ls "),
    "marks": repeated("~^", before="ls a"),
    "words": repeated(" a", before="ls"),
    "redirections": repeated(" 2>&1", before="ls"),
    "options": repeated(" -A1", before="grep"),
    "a bundle of options": repeated("l", before="ls -"),
    "numbers": repeated("1", before="head -n ", after="x"),
    "ranges": repeated("1,2p;", before="sed -n '", after="'"),
    "ranges and a word": repeated("1,2p;", before="sed -n '", after="x'"),
    "a format": repeated("%h", before="git log --format=", after="%Q"),
    "a format of text": repeated("a", before="git log --format=%h", after="%Q"),
    "colours": repeated("%C(red)", before="git log '--format=", after="%C(red'"),
    "branches": repeated(" --contains=a", before="git branch", after=" b"),
    "an expression": repeated(" -name a -o", before="find ."),
    "kinds": repeated("f,", before="find . -type "),
    "operators": repeated("ls &&||;|"),
    "operators alone": repeated("&"),
    "parentheses": repeated("("),
    "substitutions": repeated("ls $("),
    "heredocs": repeated("cat <<E\n"),
    "a heredoc of a patch": repeated("E", before="apply_patch <<"),
    "heredocs of a patch": repeated("\nE \nEE", before="apply_patch <<E"),
    "blanks before a patch": repeated(" ", after="apply_patc"),
    "line ends": repeated("\n"),
    "blanks": repeated(" \t"),
    "backslashes": repeated("\\"),
    "comments": repeated("# ls\n"),
    "unseen characters": repeated("\u202e\x1b\u200b"),
}

CPU_SECONDS: Final = 0.5
"""The maximum CPU time of one check in seconds, on a slow machine. Most checks take a hundredth of it."""


def action(*argv: str) -> RunCommand:
    return RunCommand(call_id=CallId("c"), argv=argv, cwd="/work", search_path="/usr/bin:/bin")


def show(argv: Argv) -> object:
    return quoted_command(argv), [one_line(word) for word in argv]


READINGS: Final[dict[str, Callable[[Argv], object]]] = {
    "judged": lambda argv: is_safe(action(*argv), ["/work"]),
    "summarized": parse,
    "searched for a patch": patch_in,
    "shown": show,
}


def hostile(length: int) -> Iterator[tuple[str, Argv]]:
    """Yield every family as a shell script, as one word, and as several words."""
    for name, family in FAMILIES.items():
        script = family(length)
        yield f"{name}, in bash -lc", ("bash", "-lc", script)
        yield f"{name}, in sh -c", ("sh", "-c", script)
        yield f"{name}, as a word", ("ls", script)
        yield f"{name}, as words", tuple(script.split(" "))


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("length", [MAX_SCRIPT, MAX_CHARACTERS - 10, pytest.param(100_000, marks=pytest.mark.long)])
def test_no_command_takes_long_to_be(reading: str, length: int) -> None:
    read, slow = READINGS[reading], dict[str, float]()
    for name, argv in hostile(length):
        begin = time.process_time()
        read(argv)
        if (seconds := time.process_time() - begin) > CPU_SECONDS:
            slow[name] = seconds
    assert slow == {}


@pytest.mark.promises("decide.bounded")
def test_a_script_beyond_the_limits_is_not_safe() -> None:
    longest = "ls " + "a" * (MAX_CHARACTERS - len("bash -c ls  "))
    most = "ls;" * MAX_COMMANDS

    assert is_safe(action("bash", "-c", longest), ["/work"])
    assert is_safe(action("bash", "-c", most), ["/work"])
    assert not is_safe(action("bash", "-c", longest + "a"), ["/work"])
    assert not is_safe(action("bash", "-c", most + "ls"), ["/work"])


@pytest.mark.promises("decide.bounded")
def test_a_command_beyond_the_limit_is_not_safe() -> None:
    words = ["a"] * ((MAX_CHARACTERS - len("ls ")) // 2)

    assert is_safe(action("ls", *words), ["/work"])
    assert not is_safe(action("ls", *words, "a"), ["/work"])


def test_a_script_of_too_many_commands_is_not_understood() -> None:
    assert commands_in("a;" * MAX_COMMANDS) == [("a",)] * MAX_COMMANDS
    assert commands_in("a;" * (MAX_COMMANDS + 1)) is None
    assert commands_in("a" * (MAX_CHARACTERS + 1)) is None
