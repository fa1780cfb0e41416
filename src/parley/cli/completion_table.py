"""The table of commands, options and operands from which the completion scripts are generated.

The table is read from the parsers of the commands, so that it is always complete. The kind of a value
is derived from its placeholder in the help, such as `ID` or `FILE`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Final, NamedTuple

from parley.cli.completion import SHELLS
from parley.cli.main import COMMANDS
from parley.cli.parser import make_parser

__all__ = ["NodeOfTable", "Operand", "Option", "Value", "command_table"]

KINDS: Final = {
    "ID": "conversations",
    "APPROVAL_ID": "approvals",
    "KEY": "settings",
    "KEY=VALUE": "assignments",
    "FILE": "files",
    "PATH": "files",
    "DIR": "directories",
    "DIRECTORY": "directories",
    "MODEL": "models",
}
"""The kinds of values, keyed by the placeholder in the help. A value with any other placeholder cannot be
completed.
"""
TEXT: Final = "text"
WORDS: Final = "words"


class Value(NamedTuple):
    """The possible values of an option or of an operand."""

    kind: str
    """One of the kinds in `KINDS`, or `providers`, `words`, or `text` for a value that cannot be completed."""
    words: tuple[str, ...] = ()
    """All values, if `kind` is `words`; otherwise empty."""


class Option(NamedTuple):
    """An option with all its names, such as `-c` and `--config`."""

    names: tuple[str, ...]
    help: str
    value: Value | None
    """The possible values of the option; None if the option takes no value."""


class Operand(NamedTuple):
    value: Value
    repeats: bool


class NodeOfTable(NamedTuple):
    """A command, or an action of a command such as `config set`."""

    path: tuple[str, ...]
    summary: str
    options: tuple[Option, ...]
    operands: tuple[Operand, ...]
    actions: tuple[tuple[str, str], ...]
    """The name and the summary of each action of the command."""


def command_table() -> list[NodeOfTable]:
    """Return the table, with one entry for `parley` itself, for each command, and for each action of a command."""
    names = [(name, one.summary) for one in COMMANDS for name in (one.name, *one.aliases)]
    own = (
        Option(("-h", "--help"), "list the commands", None),
        Option(("-V", "--version"), "show the version", None),
    )
    table = [NodeOfTable((), "", own, (), (*names, ("help", "show the help of a command")))]
    for command in COMMANDS:
        module = import_module(f"parley.cli.{command.module}")
        parser = make_parser(f"parley {command.name}", "", configure=module.configure, usage_error=_never)
        for name in (command.name, *command.aliases):
            table += _nodes(parser, (name,), command.summary)
    help_value = Value(WORDS, tuple(name for name, _ in names))
    table.append(NodeOfTable(("help",), "show the help of a command", (), (Operand(help_value, False),), ()))
    return table


def _never(reason: str, prog: str) -> Exception:
    return AssertionError(f"{prog}: {reason}")


def _nodes(parser: argparse.ArgumentParser, path: tuple[str, ...], summary: str) -> Iterator[NodeOfTable]:
    options: list[Option] = []
    operands: list[Operand] = []
    actions: list[tuple[str, str]] = []
    below: list[NodeOfTable] = []
    for one in parser._actions:  # argparse has no public list of the arguments
        if one.help == argparse.SUPPRESS:
            continue
        if isinstance(one, argparse._SubParsersAction):
            for name, inner in one.choices.items():
                about = _first_line(inner.description)
                actions.append((name, about))
                below += _nodes(inner, (*path, name), about)
        elif one.option_strings:
            value = None if one.nargs == 0 else _value(one)
            options.append(Option(tuple(one.option_strings), _first_line(one.help), value))
        else:
            operands.append(Operand(_value(one), repeats=one.nargs in ("+", "*", argparse.REMAINDER)))
    yield NodeOfTable(path, summary, tuple(options), tuple(operands), tuple(actions))
    yield from below


def _value(action: argparse.Action) -> Value:
    if action.choices is not None:
        return Value(WORDS, tuple(map(str, action.choices)))
    if action.metavar == "SHELL":
        return Value(WORDS, SHELLS)
    if action.dest == "provider":
        return Value("providers")
    placeholder = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return Value(KINDS.get(placeholder, TEXT))


def _first_line(text: str | None) -> str:
    """Return the first clause in the first line of a help text. The rest of the line would be too long for a list
    of candidates.
    """
    first = (text or "").strip().partition("\n")[0]
    return first.split(";")[0].split(" (")[0].rstrip(".:").replace("%%", "%")
