"""Creates the argument parsers of the commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import NoReturn

__all__ = ["make_parser", "option_names"]


def make_parser(
    prog: str,
    description: str,
    *,
    configure: Callable[[argparse.ArgumentParser], None],
    usage_error: Callable[[str, str], Exception],
) -> argparse.ArgumentParser:
    """Return the argument parser of the command `prog`. `configure` adds the options and operands to the parser.

    For an invalid command line, the parser raises the error that `usage_error` returns. The arguments of
    `usage_error` are the reason, and the name of the command, such as `parley token create`.
    """

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise usage_error(message, self.prog)

    parser = Parser(
        prog=prog,
        description=description,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    configure(parser)
    parser.add_argument("-h", "--help", action="help", help="show this help")
    return parser


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the names of all long options of a parser, such as `--json`."""
    return re.findall(r"--[a-z][a-z-]*", parser.format_usage())


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=27, width=80)
