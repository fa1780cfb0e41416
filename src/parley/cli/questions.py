"""Asks the user questions on a terminal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from textwrap import fill
from typing import NamedTuple

from parley.cli.printing import print_text

__all__ = ["Choice", "ask", "ask_choice", "ask_secret", "ask_yes_or_no"]


class Choice(NamedTuple):
    """One of the numbered choices for the answer to a question."""

    name: str
    """The name of the choice. The user can type the name instead of the number."""
    text: str
    """The description of the choice."""


def ask(question: str, default: str = "", *, check: Callable[[str], str | None] = lambda _: None) -> str:
    """Ask a question, and return the answer without surrounding spaces. An empty answer means `default`.

    `check` returns the reason why an answer is not accepted; None if the answer is accepted. If an answer is not
    accepted, print the reason and repeat the question.

    Raises:
        EOFError: the user ended the input.
    """
    while True:
        print_text(f"{question}{f' [{default}]' if default else ''}: ", end="")
        answer = input().strip() or default
        if (reason := check(answer)) is None:
            return answer
        print_text(reason)


def ask_choice(title: str, question: str, choices: Sequence[Choice], default: int = 0) -> Choice:
    """Print `title` and the numbered choices, ask `question`, and return the choice of the user.

    If the answer is empty, return the choice at the index `default`.

    Raises:
        EOFError: the user ended the input.
    """
    print_text(title)
    width = max(len(one.name) for one in choices)
    columns = shutil.get_terminal_size().columns
    for number, one in enumerate(choices, 1):
        start = f"{number:>4}. {one.name:<{width}}  "
        print_text(fill(one.text, columns, initial_indent=start, subsequent_indent=" " * len(start)).rstrip())

    def chosen(answer: str) -> Choice | None:
        if answer.isascii() and answer.isdecimal():
            return choices[int(answer) - 1] if 0 < int(answer) <= len(choices) else None
        return next((one for one in choices if one.name == answer), None)

    def check(answer: str) -> str | None:
        return None if chosen(answer) else f"{answer!r} is neither a number from 1 to {len(choices)} nor a name"

    answer = chosen(ask(question, str(default + 1), check=check))
    assert answer is not None
    return answer


def ask_yes_or_no(question: str, *, default: bool) -> bool:
    """Ask a question, and return whether the user answered yes. An empty answer means `default`.

    Raises:
        EOFError: the user ended the input.
    """
    known = {"y": True, "yes": True, "n": False, "no": False}

    def check(answer: str) -> str | None:
        return None if answer.lower() in known else "answer with y or n"

    return known[ask(f"{question} (y/n)", "y" if default else "n", check=check).lower()]


def ask_secret(question: str) -> str:
    """Ask for a secret, and return it without surrounding spaces. The terminal does not show the secret.

    Raises:
        EOFError: the user ended the input.
    """
    from getpass import getpass  # imported here: few commands need this module

    return getpass(f"{question}: ").strip()
