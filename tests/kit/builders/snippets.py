"""The code blocks of the documentation, and the commands of Parley in them."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from docs.site.markdown import parse

from parley.cli.main import COMMANDS
from parley.cli.parser import make_parser
from parley.cli.runner import UsageError

__all__ = ["ROOT", "Snippet", "commands_in", "inline_commands", "problem_with", "shell_lines", "snippets"]

ROOT: Final = Path(__file__).parents[3]

_BEFORE: Final = re.compile(r"[A-Z_]+=.*|[&|;]+|--|.*\)|run|if|!|parley|node-1")
"""The word before a command: a variable, an operator, or a word of `docker` or `kubectl`."""


class Snippet(NamedTuple):
    """A code block."""

    page: str
    language: str
    title: str
    """The words after the language."""
    code: str

    def __str__(self) -> str:
        return f"{self.page}: {self.code.strip().splitlines()[0] if self.code.strip() else ''}"


@cache
def snippets() -> tuple[Snippet, ...]:
    """Return all code blocks of the README and of the pages in `docs/`, in order."""
    found = []
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        for token in parse(path.read_text()).tokens:
            if token.type in ("fence", "code_block"):
                language, _, title = token.info.partition(" ")
                found.append(Snippet(path.relative_to(ROOT).as_posix(), language, title, token.content))
    return tuple(found)


def inline_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the words of each command of Parley in the text of a page."""
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        for token in parse(path.read_text()).tokens:
            for child in token.children or ():
                if child.type == "code_inline" and child.content.startswith("parley "):
                    yield path.relative_to(ROOT).as_posix(), _words(child.content)[1:]


def shell_lines(snippet: Snippet) -> str:
    """Return the commands of a block without prompts and output."""
    if snippet.language == "sh" and not snippet.code.startswith("$ "):
        return snippet.code
    lines: list[str] = []
    for line in snippet.code.splitlines():
        if line.startswith("$ "):
            lines.append(line[2:])
        elif lines and (line.startswith("> ") or lines[-1].endswith("\\")):
            lines.append(line.removeprefix("> "))
    return "\n".join(lines) + "\n"


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command of Parley in a text of shell commands."""
    for line in text.replace("\\\n", " ").splitlines():
        words = _words(line)
        for start in (number for number, word in enumerate(words) if re.fullmatch(r"([^=]*/)?parley", word)):
            if start == 0 or _BEFORE.fullmatch(words[start - 1]):
                yield _until_end(words[start + 1 :])


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def _until_end(words: list[str]) -> list[str]:
    """Return the words before the end of the command, without redirections."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif re.fullmatch(r"[&|;]+", word):
            break
        elif re.fullmatch(r"[<>&]+", word):
            skip = True
            if kept and kept[-1] in ("1", "2"):
                kept.pop()
        else:
            kept.append(word)
    return kept


def problem_with(words: list[str]) -> str | None:
    """Return why the parser of the command rejects the arguments; None if it accepts them."""
    match words:
        case [] | ["--version" | "-V" | "--help" | "-h" | "help", *_]:
            return None
        case [name, *rest]:
            parser = _parser(name)
        case _:
            raise AssertionError(words)
    if parser is None:
        return f"unknown command {name!r}"
    try:
        parser.parse_args(rest)
    except UsageError as error:
        return str(error)
    except SystemExit:  # --help
        return None
    return None


@cache
def _parser(name: str) -> argparse.ArgumentParser | None:
    command = next((one for one in COMMANDS if name in (one.name, *one.aliases)), None)
    if command is None:
        return None
    module = importlib.import_module(f"parley.cli.{command.module}")
    return make_parser(
        f"parley {name}",
        module.DESCRIPTION,
        configure=module.configure,
        usage_error=lambda reason, prog: UsageError(reason, prog=prog),
    )
