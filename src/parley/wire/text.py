"""Text that can be said: not everything that Python calls a string is."""

from __future__ import annotations

__all__ = ["sayable"]


def sayable(text: str) -> str:
    """The text with `?` for halves of surrogate pairs, which no UTF-8 has: bytes that were none come as such."""
    return text.encode("utf-8", "replace").decode()
