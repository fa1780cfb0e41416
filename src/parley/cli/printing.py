"""Prints text on the terminal with control characters escaped, because a model or a repository may have written the
text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from parley.wire.text import unseen, visible

__all__ = [
    "for_terminal",
    "print_json",
    "print_note",
    "print_nothing_found",
    "print_text",
    "uses_colour",
]

_KEPT: Final = frozenset(map(ord, "\n\t\u200d\ufe0e\ufe0f"))
"""Harmless invisible characters that are not escaped: newlines, tabs, and characters that join or select emoji."""


def for_terminal(text: str) -> str:
    """Return `text` with control, bidirectional and other invisible characters escaped, except newlines, tabs, and
    characters that join or select emoji.
    """
    text = text.replace("\r\n", "\n")
    return text.translate({code: escape for code, escape in unseen(text).items() if code not in _KEPT})


def uses_colour(out: TextIO) -> bool:
    """Return True if `out` is a terminal with colours and NO_COLOR is not set."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_text(text: str, out: TextIO | None = None, *, end: str = "\n") -> None:
    """Print text that may come from any source, followed by `end`. If `out` (by default stdout) is a terminal,
    escape control characters.
    """
    out = sys.stdout if out is None else out
    print(for_terminal(text) if out.isatty() else text, file=out, end=end, flush=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print a JSON object on one line. If stdout is a terminal, escape all characters that are not ASCII, and
    thereby all invisible characters.
    """
    import json  # imported here: `parley mcp` starts without it

    print(json.dumps(value, ensure_ascii=sys.stdout.isatty(), separators=(",", ":")), flush=True)


def print_note(command: str, text: object) -> None:
    """Print a note or an error of a command for the user to stderr, on one line."""
    print(f"parley {command}: {visible(str(text))}", file=sys.stderr, flush=True)


def print_nothing_found(command: str, text: str) -> None:
    """Print the note `text` to stderr when a list is empty. If stdout is not a terminal, print nothing, because a
    script that reads the list needs no note.
    """
    if sys.stdout.isatty():
        print_note(command, text)
