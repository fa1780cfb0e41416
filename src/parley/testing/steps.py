"""The steps of a scripted reply. A plain string is one delta of text; the other steps are here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["HOLD", "Call", "Data", "Delay", "Hold", "Pieces", "Reasoning", "Step", "Usage"]


class Hold(Enum):
    HOLD = "hold"


HOLD: Final = Hold.HOLD
"""The reply waits here until the test releases it."""


class Delay(Struct, frozen=True):
    """A pause in the reply, for demonstrations. Tests use `HOLD` instead."""

    seconds: float


class Pieces(Struct, frozen=True):
    """A text as deltas of `size` characters."""

    text: str
    size: int = 1


class Reasoning(Struct, frozen=True):
    """Reasoning: a summary over the Responses API, raw reasoning over chat."""

    text: str


class Call(Struct, frozen=True):
    """A function call of the model."""

    name: str
    arguments: Mapping[str, Any] | str
    """An object, or a text that is sent unchanged and need not be JSON."""
    call_id: str | None = None
    """A unique id is generated if it is None."""


class Usage(Struct, frozen=True, kw_only=True):
    """The token counts of a response. Over chat they are sent only on request."""

    input_tokens: int = 10
    cached_input_tokens: int = 0
    output_tokens: int = 5
    reasoning_output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Data(Struct, frozen=True):
    """The raw data of one server-sent event."""

    text: str


Step: TypeAlias = str | Literal[Hold.HOLD] | Delay | Pieces | Reasoning | Call | Usage | Data
