"""The reference page of the commands, from their argument parsers and help texts."""

from __future__ import annotations

import argparse
import importlib
import re
import textwrap
from collections.abc import Iterator

from docs.site.reference.docstrings import cell

from parley.cli.main import COMMANDS
from parley.cli.parser import make_parser
from parley.cli.runner import UsageError

__all__ = ["commands_page"]

_HEAD = """\
# Commands and options

The help text of each command. [Commands](../commands.md) explains how the commands work together, and
describes their exit codes and their JSON. `parley COMMAND --help` prints the same texts.
"""


def commands_page() -> str:
    """Return the page as Markdown."""
    table = "".join(f"| [`parley {one.name}`](#parley-{one.name}) | {cell(one.summary)} |\n" for one in COMMANDS)
    sections = []
    for command in COMMANDS:
        module = importlib.import_module(f"parley.cli.{command.module}")
        parser = make_parser(
            f"parley {command.name}", module.DESCRIPTION, configure=module.configure, usage_error=_usage_error
        )
        sections.append("\n".join(_sections(parser, level=2)))
    return "\n".join([_HEAD, f"| command | |\n| --- | --- |\n{table}", *sections])


def _usage_error(reason: str, prog: str) -> UsageError:
    return UsageError(reason, prog=prog)


def _sections(parser: argparse.ArgumentParser, *, level: int) -> Iterator[str]:
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    yield f"{'#' * level} `{parser.prog}`\n"
    yield f"```text\n{usage}\n```\n"
    yield f"{_prose(parser.description or '')}\n"
    actions = [one for one in parser._actions if not isinstance(one, argparse._SubParsersAction)]
    rows = "".join(f"| {_invocation(one)} | {cell(_help(one, parser))} |\n" for one in actions)
    yield f"| option | |\n| --- | --- |\n{rows}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from _sections(inner, level=level + 1)


def _prose(text: str) -> str:
    """Return a help text as Markdown. Indented lines are a code block."""
    parts = []
    for part in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        if re.search(r"^  ", part, re.MULTILINE):
            parts.append(f"```text\n{part}\n```")
        else:
            parts.append(" ".join(part.split()))
    return "\n\n".join(parts)


def _invocation(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else None
    if not action.option_strings:
        return f"`{metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {metavar or (action.dest.upper())}"
    if action.choices and not metavar:
        value = " " + "|".join(str(choice) for choice in action.choices)
    return ", ".join(f"`{option}{value}`".replace("|", r"\|") for option in action.option_strings)


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = action.help or ""
    return text % {"default": action.default, "prog": parser.prog} if "%" in text else text
