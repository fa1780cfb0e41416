"""What the commands print: names, titles and errors, without anything that acts on a terminal or cannot be seen."""

from __future__ import annotations

import sys

from parley.wire.text import quoted, unseen

__all__ = ["complain", "shown", "visible"]


def complain(command: str, text: object) -> None:
    """Print an error of a command to stderr, on one line."""
    print(f"parley {command}: {visible(str(text))}", file=sys.stderr)


def visible(text: str) -> str:
    """The text on one line, with control, bidirectional and zero-width characters spelled out."""
    return text.translate(unseen(text))


def shown(path: str) -> str:
    """A path as it is; as a word of a shell where something in it cannot be seen."""
    return quoted(path)
