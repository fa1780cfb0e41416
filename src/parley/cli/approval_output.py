"""Prints open approvals for people: the action, with the diff of a patch, and the question about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final, TextIO

import msgspec

from parley.cli.chat.approvals import question
from parley.cli.chat.diffs import change_lines
from parley.cli.ids import SHORT
from parley.cli.printing import print_text, uses_colour
from parley.client import Approval, events

__all__ = ["FOLDED_LINES", "message_lines", "print_approval"]

FOLDED_LINES: Final = 40
"""The maximum number of lines of a patch that a list of approvals shows."""

_PATCH_QUESTIONS: Final = {
    "Allow Codex to apply proposed code changes?": "Apply these changes?",
    "Allow Codex to apply proposed code changes, outside the sandbox?": "Apply these changes outside the sandbox?",
}
"""The questions that the chat asks about a patch, keyed by the questions that the server writes for MCP clients."""


def message_lines(message: str) -> list[str]:
    """Return the lines of `message`, the text of an approval request. A line with the server's question about a
    patch is replaced by the question that the chat asks, such as `Apply these changes?`.
    """
    return [_PATCH_QUESTIONS.get(line, line) for line in message.splitlines()]


def print_approval(approval: Approval, *, is_folded: bool, out: TextIO | None = None) -> None:
    """Print an open approval to `out` (by default stdout). If `is_folded` is True, print at most `FOLDED_LINES`
    lines of a patch, and the command that prints all lines.
    """
    out = sys.stdout if out is None else out
    short = (approval.approval_id or "")[:SHORT]
    conversation = (approval.conversation_id or "")[:SHORT]
    print_text(f"{short}  {approval.kind}, in conversation {conversation}", out)
    if approval.kind != "patch":
        for line in approval.message.splitlines():
            print_text(f"    {line}", out)
        return
    for line in _reasons(approval.message):
        print_text(f"    {line}", out)
    lines = list(_patch(approval, colour=uses_colour(out)))
    shown = lines[:FOLDED_LINES] if is_folded else lines
    for line in shown:
        print(line, file=out)  # the control characters of the patch are escaped
    if (more := len(lines) - len(shown)) > 0:
        print_text(f"    ... {more} more lines; `parley answer {short}` shows all", out)
    print_text(f"    {question(approval)}", out)


def _reasons(message: str) -> Iterator[str]:
    """Yield the lines that precede the question in `message`, the text of an approval request for a patch."""
    for line in message.splitlines():
        if line in _PATCH_QUESTIONS:
            return
        yield line


def _patch(approval: Approval, *, colour: bool) -> Iterator[str]:
    changes = msgspec.convert(approval.changes or {}, dict[str, events.FileChange])
    return change_lines(changes, colour=colour, split=lambda line: [f"    {line}"])
