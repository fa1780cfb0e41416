"""Asking a model again when its response broke off and that is worth it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import random
from typing import Final

from parley.errors import ModelError
from parley.ports.clock import Clock
from parley.ports.model import Model, backoff_seconds
from parley.ports.transcript import Transcript
from parley.wire.events import BackgroundEvent
from parley.wire.text import sayable

__all__ = ["REFUSED_AS_SUCH", "ask_patiently", "is_overflow"]

REFUSED_AS_SUCH: Final = frozenset({400, 413, 422})
"""Statuses that speak of the request; the others speak of who asks, or of the moment."""


SAID_OF_TOO_MUCH: Final = (
    "context_length_exceeded",
    "context length",
    "context window",
    "context size",
    "prompt is too long",
    "input is too long",
    "maximum number of tokens",
)
"""What providers say of a request that is too long for the model, in any case of letters."""


def is_overflow(error: ModelError) -> bool:
    """Whether a provider refused a request because it is too long for the model."""
    told = str(error).lower()
    return any(words in told for words in SAID_OF_TOO_MUCH)


async def ask_patiently(
    attempt: Callable[[], Awaitable[None]], model: Model, transcript: Transcript, clock: Clock
) -> None:
    """Try until it succeeds; each repetition is announced.

    Raises:
        ModelError: of the last attempt.
    """
    repetitions = 0
    while True:
        try:
            return await attempt()
        except ModelError as error:
            if not error.worth_repeating or is_overflow(error) or repetitions >= model.max_retries:
                raise
            repetitions += 1
            delay = backoff_seconds(repetitions, random())
            note = f"stream error: {error}; retrying {repetitions}/{model.max_retries} in {_spoken(delay)}…"
            await transcript.append(BackgroundEvent(message=sayable(note)))
            await clock.sleep(delay)


def _spoken(seconds: float) -> str:
    """A delay as people read it: `187.5ms`, `1.6s`."""
    return f"{round(seconds * 1000, 1):g}ms" if seconds < 1 else f"{round(seconds, 2):g}s"
