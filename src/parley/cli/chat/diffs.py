"""Formats the file changes of patches as coloured lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import UnsetType

from parley.cli.printing import for_terminal
from parley.client import events
from parley.wire.text import visible

__all__ = ["DIFF_LINES", "change_lines", "coloured_diff"]

DIFF_LINES: Final = 60
"""The maximum number of lines that the chat prints from a patch when the patch is applied. The user can expand a
longer patch.
"""

TAB: Final = 4
_COLOURS: Final = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m", " ": ""}
_PLAIN: Final = "\x1b[0m"


def _indented(line: str) -> list[str]:
    return [f"  {line}"]


def change_lines(
    changes: Mapping[str, events.FileChange], *, colour: bool, split: Callable[[str], list[str]] = _indented
) -> Iterator[str]:
    """Yield the lines of the changes to all files, coloured if `colour` is True. The first line for each file
    contains its path.

    `split` indents a line, and splits it into lines that fit the terminal. By default, a line is indented and not
    split.
    """
    for path, change in changes.items():
        yield from split(visible(_title(path, change)))
        if not isinstance(change, str):
            yield from coloured_diff(_diff(change), colour=colour, split=split)


def coloured_diff(diff: str, *, colour: bool, split: Callable[[str], list[str]] = _indented) -> Iterator[str]:
    """Yield the lines of a unified diff with their control characters escaped. `colour` and `split` have the same
    meaning as for `change_lines`.
    """
    for line in diff.split("\n") if not diff.endswith("\n") else diff[:-1].split("\n"):
        start = _COLOURS.get(line[:1], "") if colour else ""
        shown = for_terminal(line.expandtabs(TAB)).replace("\n", " ")
        for row in split(shown):
            yield f"{start}{row}{_PLAIN}" if start else row


def _title(path: str, change: events.FileChange) -> str:
    if isinstance(change, str):
        return f"delete {path}"
    if not isinstance(change.add, UnsetType):
        return f"add {path}"
    if isinstance(change.update, UnsetType) or change.update.move_path is None:
        return f"update {path}"
    return f"move {path} to {change.update.move_path}"


def _diff(change: events.OtherChange) -> str:
    if not isinstance(change.add, UnsetType):
        content = change.add.content
        return "".join(f"+{line}\n" for line in content.removesuffix("\n").split("\n")) if content else ""
    return "" if isinstance(change.update, UnsetType) else change.update.unified_diff
