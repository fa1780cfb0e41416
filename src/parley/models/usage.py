"""Converts token counts, which the model APIs report under different names."""

from __future__ import annotations

from msgspec import Struct

from parley.wire.events import TokenCount

__all__ = ["InputDetails", "OutputDetails", "token_count"]


class InputDetails(Struct, frozen=True):
    cached_tokens: int | None = None


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int | None = None


def token_count(
    *, given: int, made: int, total: int, given_details: InputDetails | None, made_details: OutputDetails | None
) -> TokenCount:
    """Return the event that reports the token usage of a response: the input tokens (`given`), the output tokens
    (`made`) and the total. The details contain the numbers of cached and of reasoning tokens, if they are known.

    A negative count becomes 0, because it would reduce the total usage of the conversation.
    """
    return TokenCount(
        input_tokens=max(0, given),
        cached_input_tokens=given_details.cached_tokens if given_details else None,
        output_tokens=max(0, made),
        reasoning_output_tokens=made_details.reasoning_tokens if made_details else None,
        total_tokens=max(0, total),
    )
