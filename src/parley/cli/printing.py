"""Errors of the commands, printed without characters that act on a terminal or cannot be seen."""

from __future__ import annotations

import sys

from parley.wire.text import visible

__all__ = ["print_error"]


def print_error(command: str, text: object) -> None:
    """Print an error of a command to stderr, on one line."""
    print(f"parley {command}: {visible(str(text))}", file=sys.stderr)
