"""Finds a patch in a command. This module recognises the forms of such commands, and `parser` checks the patch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["patch_in"]

_PROGRAMS: Final = frozenset({"apply_patch", "applypatch"})

_HEREDOC: Final = re.compile(
    r"\s*(?:apply_patch|applypatch)[ \t]*<<[ \t]*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)[ \t]*\n"
)

_EXPANDED: Final = re.compile(r"[$`\\]")
"""Characters that a shell interprets in a heredoc whose delimiter is not quoted."""


def patch_in(argv: Sequence[str]) -> str | None:
    """Return the patch that the command `argv` passes to `apply_patch`; None for any other command."""
    match tuple(argv):
        case (program, patch) if program in _PROGRAMS:
            return patch
        case ("bash", "-lc", script):
            return _in_heredoc(script)
        case _:
            return None


def _in_heredoc(script: str) -> str | None:
    opening = _HEREDOC.match(script)
    if opening is None:
        return None
    body, word, rest = f"\n{script[opening.end() :]}\n".partition(f"\n{opening['word']}\n")
    if not word or rest.strip():
        return None
    if not opening["quote"] and _EXPANDED.search(body):
        return None
    return body[1:]
