"""What a scripted reply is made of: a plain string is one delta of text; the rest is here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["HOLD", "Call", "Data", "Delay", "Hold", "Pieces", "Reasoning", "Step", "Usage"]


class Hold(Enum):
    HOLD = "hold"


HOLD: Final = Hold.HOLD
"""The reply stands still here until the test releases it."""


class Delay(Struct, frozen=True):
    """The reply pauses, for demonstrations; a test waits with `HOLD` instead."""

    seconds: float


class Pieces(Struct, frozen=True):
    """A text as deltas of `size` characters."""

    text: str
    size: int = 1


class Reasoning(Struct, frozen=True):
    """Thought aloud: a summary over the responses API, raw reasoning over chat."""

    text: str


class Call(Struct, frozen=True):
    """The model wants a function run."""

    name: str
    arguments: Mapping[str, Any] | str
    """As an object, or as the text to send, good JSON or bad."""
    call_id: str | None = None
    """Made up if None, never the same twice."""


class Usage(Struct, frozen=True, kw_only=True):
    """What the response cost. Over chat it is told to those who asked for it."""

    input_tokens: int = 10
    cached_input_tokens: int = 0
    output_tokens: int = 5
    reasoning_output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Data(Struct, frozen=True):
    """The data of one server-sent event, sent as it is."""

    text: str


Step: TypeAlias = str | Literal[Hold.HOLD] | Delay | Pieces | Reasoning | Call | Usage | Data
