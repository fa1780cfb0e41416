"""Every shell runs exactly the commands that the lexer returns for a script that it accepts."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.agent.safe import commands_in

Argv = tuple[str, ...]

SHELL_SECONDS: Final = 100
"""The timeout of a batch in seconds. A shell that waits for more input would never end."""


# --- scripts that a lexer could misread --------------------------------------------------------

NAMES = ("ls", "cat", "g++", "7z", "x.y", "a,b", "@x", "_", "wc")
SHELL_WORDS = (
    *("if", "then", "else", "elif", "fi", "case", "esac", "for", "while", "until", "do", "done", "in", "function"),
    *("time", "select", "coproc", "{", "}", "!", "[[", "]]", "[", "(", ")", "alias", "eval", "exec", "exit", "set"),
    *("trap", "command", "builtin", "export", ".", "source", ":", "break", "return", "unset", "type", "hash"),
)
WORDS = (
    *("a", "-n", "--", "-", "--x=y", "=ls", "a=b", "a=", "a+=b", "~", "~/x", "a~", "x:~", "a=~"),
    *("~+", "~-", "@", "+", "%", "%1", "%%", "a%b", "*", "?", "[a-z]", "*.c", "a*b", "{a,b}"),
    *("{1..3}", "a{b,c}d", "@(a|b)", "+(x)", "!(a)", "!x", "!!", "^", "^a^b", "#", "#x", "a#b"),
    *("$x", "${x}", "$(ls)", "`ls`", "$((1+1))", "$'a\\nb'", '$"a"', "$$", "\\", "\\a", "\\ "),
    *("a\\ b", "\\\\", "\\'", '\\"', "\\\n", "a\\\nb", "\n", "''", '""', "'a b'", '"a b"'),
    *("'a\"b'", '"a\'b"', "'a'b\"c\"", "'\n'", '"\n"', "'\t'", "'\\'", '"\\n"', "'$x'", '"$x"'),
    *("'!'", '"!"', "'*'", '"*"', "'~'", '"~"', "'{a,b}'", "'#'", "'='", "'a=b'", "'é'", '"日本"'),
    *("'\u00a0'", "'\u2028'", "'", '"', "é", "日", "\u0661", "\u00a0", "\u2003", "\u200b", "\u2028"),
    *("\ufeff", "\uff5c", "\uff1b", "a\u00a0b", "\x85", "\x01", "\x0b", "\x0c", "\r", "\x1b"),
    *("\x7f", ">x", "<x", "2>&1", ">&2", "<<E", "E", "<<<x", "<(ls)", "&>x", ">|x", "1", "2"),
    *("0x1", "-lc", "+x", "/x", "./x", "../x", "a;b", "a|b", "a&b"),
)
OFTEN = (
    *("2>&1", "2>/dev/null", ">/dev/null", "1>/dev/null", "2>&1x", ">/dev/null2", "2>/dev/null;", "2>&1|cat"),
    *("HEAD~1", "HEAD^", "main^^", "a~b^2", "a~~", "'a'~", "a=b~", "a:b~", "x=a~:~", "a.~", "1~", "1^", "~a~"),
    *(r'"a\|b"', r'"\d+"', r'"\.\*"', r'"\a\b\n"', r'"\ "', r'"\a\$b"', r'"\\"', r'"\`"', '"\\\n"', r'"\&"'),
    *('"=== a ==="', "''=x", "'=x'", '"="=', "='x'", r'"\~"a~', 'a"~"', "a'^'^", r'"\{a,b}"', r'"\[a-z]*"'),
)
"""Strings that agents often write, and strings that are similar to them."""
OPERATORS = ("&&", "||", ";", "|", "\n", " ; ", "&&\n", "|\n", "\n\n", "||\n\t", ";\n")
ODD_OPERATORS = ("&", ";;", "|&", "&&&", "|||", "; ;", "& &", "\n;", "\n&&", "!", "\\\n", "\r\n", "\x0b", "()", "")
BLANKS = (" ", " ", " ", "  ", "\t", "")
ALPHABET = "abls012 \t\n'\"'\"\\$`!#&|;<>(){}[]*?~=%+-_./,:@^é\u00a0\r\x0b\x0c\x01"


def plain_command(chance: random.Random) -> str:
    words = (
        chance.choice(chance.choice((WORDS, OFTEN, ("a", "-n", "b/c", "'x y'"))))
        for _ in range(chance.randrange(4))
    )
    return " ".join([chance.choice(NAMES), *words])


def odd_command(chance: random.Random) -> str:
    words = (
        chance.choice(chance.choice((NAMES, SHELL_WORDS, WORDS, OFTEN))) for _ in range(chance.randrange(1, 4))
    )
    return "".join(word + chance.choice(BLANKS) for word in words)


def script(chance: random.Random) -> str:
    """Generate scripts that look harmless, and sometimes random text."""
    kind = chance.random()
    if kind < 0.1:
        return "".join(chance.choice(ALPHABET) for _ in range(chance.randrange(1, 16)))
    commands = plain_command if kind < 0.7 else odd_command
    text = chance.choice(("", "", "", " ", "\n", "\t"))
    for place in range(chance.randrange(1, 5)):
        if place:
            text += chance.choice(ODD_OPERATORS if chance.random() < 0.1 else OPERATORS)
        text += commands(chance)
    if chance.random() < 0.1:
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(ALPHABET) + text[place:]
    return text + chance.choice(("", "", "", "\n", ";", " "))


# --- shells that report the commands they run --------------------------------------------------


class Ran(NamedTuple):
    """The commands that one script ran, in order: once if every command succeeds, and once if every command
    fails."""

    succeeding: list[Argv]
    failing: list[Argv]


STUB = """#!/bin/sh
while read -r line; do :; done
printf '%s\\000' "${0##*/}" "$@" '\x01' >>"$RECORD"
exit "$STATUS"
"""
"""A program that reads its input to the end and then records its arguments.

Because it reads first, the commands of a pipeline are recorded one after another.
"""

FILES = ("a", "l", "axb", "x.c")
"""Files that patterns can match."""

END_OF_COMMAND, END_OF_SCRIPT = "\x01", "\x02"


class Shells:
    """Runs batches of scripts in one kind of shell, with stubs for all programs that they name."""

    def __init__(self, folder: Path, *shell: str) -> None:
        self._folder, self._shell = folder, shell
        self._programs = folder / "programs"
        self._programs.mkdir()
        self._files = folder / "files"
        self._files.mkdir()
        for name in FILES:
            (self._files / name).touch()
        self._stub = folder / "stub"
        self._stub.write_text(STUB)
        self._stub.chmod(0o755)

    def run(self, scripts: Mapping[str, list[Argv]]) -> list[Ran]:
        for name in {argv[0] for commands in scripts.values() for argv in commands}:
            (self._programs / name).symlink_to(self._stub)
        return [Ran(*both) for both in zip(self._all(scripts, 0), self._all(scripts, 1), strict=True)]

    def _all(self, scripts: Iterable[str], status: int) -> list[list[Argv]]:
        record = self._folder / "record"
        record.write_bytes(b"")
        shell = shlex.join(self._shell)
        driver = "".join(
            f"{shell} -c {shlex.quote(text)} </dev/null\nprintf '\\002\\000' >>\"$RECORD\"\n" for text in scripts
        )
        subprocess.run(
            ["/bin/sh"],
            input=driver.encode(),
            cwd=self._files,
            env={"PATH": str(self._programs), "RECORD": str(record), "STATUS": str(status), "LC_ALL": "C.UTF-8"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SHELL_SECONDS,
            check=False,
        )
        return list(recorded(record.read_bytes().decode()))


def recorded(record: str) -> Iterator[list[Argv]]:
    commands: list[Argv] = []
    words: list[str] = []
    for word in record.split("\0")[:-1]:
        if word == END_OF_SCRIPT:
            yield commands
            commands = []
        elif word == END_OF_COMMAND:
            commands.append(tuple(words))
            words = []
        else:
            words.append(word)


def agrees(said: list[Argv], ran: Ran) -> bool:
    """Return whether both runs match the commands that the lexer returned, except skipped commands.

    If all commands fail, a command after `&&` is skipped. If all succeed, a command after `||` is skipped. No
    command is skipped in both runs, and the first command is never skipped.
    """

    @cache
    def rest_agrees(command: int, succeeding: int, failing: int) -> bool:
        if command == len(said):
            return succeeding == len(ran.succeeding) and failing == len(ran.failing)
        here = said[command]
        ran_succeeding = ran.succeeding[succeeding : succeeding + 1] == [here]
        ran_failing = ran.failing[failing : failing + 1] == [here]
        return (
            (ran_succeeding and ran_failing and rest_agrees(command + 1, succeeding + 1, failing + 1))
            or (command > 0 and ran_succeeding and rest_agrees(command + 1, succeeding + 1, failing))
            or (command > 0 and ran_failing and rest_agrees(command + 1, succeeding, failing + 1))
        )

    return rest_agrees(0, 0, 0)


def agrees_in_any_order(said: list[Argv], ran: Ran) -> bool:
    """Return the result of `agrees` for a pipeline, whose commands may run in any order."""
    wanted, succeeding, failing = Counter(said), Counter(ran.succeeding), Counter(ran.failing)
    return succeeding <= wanted and failing <= wanted <= succeeding + failing


SILENT: Final = re.compile(r"[ \t]>/dev/null")
"""The pattern of a redirection after which a command closes the pipe before it ends."""


def names_of_bash() -> set[str]:
    """Return the builtins of bash, whose names the callers of the lexer must know."""
    listed = subprocess.run(["/bin/bash", "-c", "compgen -b"], capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


DASH_BUILT_IN = {"chdir", "getopts"}
"""Builtins of dash that bash does not have by default."""


Reader = Callable[[str], list[Argv] | None]


def accepted(read: Reader, *, seed: int, wanted: int) -> dict[str, list[Argv]]:
    """Return the scripts that the lexer accepts, and the commands that it returns."""
    chance, found = random.Random(seed), dict[str, list[Argv]]()
    built_in = names_of_bash() | DASH_BUILT_IN
    while len(found) < wanted:
        text = script(chance)
        commands = read(text)
        if commands and not any(argv[0] in built_in or "/" in argv[0] for argv in commands):
            found[text] = commands
    return found


class Mismatch(NamedTuple):
    shell: str
    script: str
    said: list[Argv]
    ran: Ran


def mismatches(folder: Path, scripts: Mapping[str, list[Argv]]) -> list[Mismatch]:
    as_sh = folder / "posix" / "sh"
    as_sh.parent.mkdir()
    as_sh.symlink_to("/bin/bash")
    found: list[Mismatch] = []
    for name, shell in {"bash": "/bin/bash", "sh": "/bin/sh", "bash as sh": str(as_sh)}.items():
        place = folder / name
        place.mkdir()
        ran = zip(scripts.items(), Shells(place, shell).run(scripts), strict=True)
        for (text, said), both in ran:
            if not (agrees_in_any_order if SILENT.search(text) else agrees)(said, both):
                found.append(Mismatch(name, text, said, both))
    return found


def test_accepted_scripts_run_as_they_were_read(tmp_path: Path) -> None:
    assert mismatches(tmp_path, accepted(commands_in, seed=4, wanted=60)) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_three_thousand_accepted_scripts_run_as_they_were_read(tmp_path: Path, seed: int) -> None:
    assert mismatches(tmp_path, accepted(commands_in, seed=seed, wanted=300)) == []


def careless_split(text: str) -> list[Argv] | None:
    """Return the commands that a naive lexer finds, which splits at all blanks that Python knows."""
    if re.search(r"""[$`'"\\<>&(){}#!]""", text):
        return None
    commands = [tuple(part.split()) for part in re.split(r"\|\||[;|\n]", text.strip(" \t\n;"))]
    return commands if all(commands) else None


def test_the_comparison_catches_a_hurried_reader(tmp_path: Path) -> None:
    assert mismatches(tmp_path, accepted(careless_split, seed=4, wanted=15)) != []


# --- scripts without a shell ---------------------------------------------------------------------

said_aloud = st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\t\n"), max_size=8)
programs = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,6}", fullmatch=True).map(lambda name: f"x{name}")
arguments = said_aloud.filter(lambda text: "'" not in text and not text.startswith("="))
commands = st.tuples(programs, st.lists(arguments, max_size=3)).map(lambda parts: (parts[0], *parts[1]))


@settings(deadline=None)
@given(written=st.lists(commands, min_size=1, max_size=4), operators=st.lists(st.sampled_from(OPERATORS)))
def test_quoted_words_are_read_as_they_were_written(written: list[Argv], operators: list[str]) -> None:
    text = ""
    for place, argv in enumerate(written):
        between = operators[place] if place < len(operators) else ";"
        text += (between if place else "") + " ".join([argv[0], *(f"'{word}'" for word in argv[1:])])

    assert commands_in(text) == written


@settings(deadline=None)
@given(text=st.text(alphabet=st.sampled_from(ALPHABET) | st.characters()))
@example("a" * 100_000)
@example("'a'" * 50_000 + "'")
@example("a;" * 50_000)
def test_any_text_is_understood_or_not_and_never_fails(text: str) -> None:
    found = commands_in(text)

    assert found is None or all(argv and argv[0] for argv in found)
