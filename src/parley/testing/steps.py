"""The steps of a scripted reply. A plain string is also a step: one delta of text."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["HOLD", "Call", "Data", "Delay", "Hold", "Pieces", "Reasoning", "Step", "Usage"]


class Hold(Enum):
    HOLD = "hold"


HOLD: Final = Hold.HOLD
"""A step at which the reply waits until the test calls `ScriptedModel.release`."""


class Delay(Struct, frozen=True):
    """A pause in the reply, for demonstrations. Tests use `HOLD` instead."""

    seconds: float


class Pieces(Struct, frozen=True):
    """Text that is sent as deltas of `size` characters."""

    text: str
    size: int = 1


class Reasoning(Struct, frozen=True):
    """Model reasoning: a summary over the Responses API, raw reasoning over Chat Completions, and a thinking block
    over the Anthropic Messages API.
    """

    text: str


class Call(Struct, frozen=True):
    """A tool call by the model."""

    name: str
    arguments: Mapping[str, Any] | str
    """The arguments as an object, or as a string that is sent unchanged and need not be JSON."""
    call_id: str | None = None
    """The id of the call. If it is None, a unique id is generated."""


class Usage(Struct, frozen=True, kw_only=True):
    """The token counts of a response. Over Chat Completions, most dialects send the counts only if the request asks
    for them.
    """

    input_tokens: int = 10
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    """The number of input tokens that were written to a cache. Only the Anthropic Messages API reports this
    number.
    """
    output_tokens: int = 5
    reasoning_output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Data(Struct, frozen=True):
    """The raw data of one server-sent event."""

    text: str


Step: TypeAlias = str | Literal[Hold.HOLD] | Delay | Pieces | Reasoning | Call | Usage | Data
