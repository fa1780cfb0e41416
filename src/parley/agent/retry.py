"""Retries requests to the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from parley.errors import CannotConnect, ModelError
from parley.ports.clock import Clock
from parley.ports.model import Model, Retrying, backoff_seconds
from parley.ports.transcript import Transcript
from parley.wire.events import BackgroundEvent, RequestRetry
from parley.wire.text import replace_surrogates

__all__ = ["CONTENT_REFUSALS", "OVERFLOWS", "is_overflow", "request_retry", "with_retries"]

CONTENT_REFUSALS: Final = frozenset({400, 413, 422})
"""HTTP statuses that mean that the provider refuses the content of a request. Other error statuses are caused by a
problem with the account or by a temporary fault.
"""


OVERFLOW_PHRASES: Final = (
    "context_length_exceeded",
    "context length",
    "context window",
    "context size",
    "prompt is too long",
    "input is too long",
    "maximum number of tokens",
)
"""Lower-case phrases that identify a provider's error for a request that is too long for the model."""


OVERFLOWS: Final = 3
"""The maximum number of times in one turn that a request is shortened because it was too long for the model. If the
provider refuses another request as too long, the turn fails.
"""


def is_overflow(error: ModelError) -> bool:
    """Return whether `error` means that the provider refused a request as too long for the model."""
    text = str(error).lower()
    return any(phrase in text for phrase in OVERFLOW_PHRASES)


CONNECT_SECONDS: Final = 5.0
"""The maximum time in seconds for which a turn repeats failed attempts to connect to a provider. The time is long
enough for a restart of the provider's server, and short enough for a user who has configured a wrong URL and is
waiting.
"""


async def with_retries(
    attempt: Callable[[], Awaitable[None]], model: Model, transcript: Transcript, clock: Clock
) -> None:
    """Call `attempt` until it succeeds, with at most `model.max_retries` retries. Append an event before each
    retry.

    Failures to connect have their own limit on retries, and are retried for at most `CONNECT_SECONDS` in
    succession. An error that a retry cannot correct is not retried.

    Raises:
        ModelError: the last attempt failed.
    """
    from random import random  # imported here: the start of a server does not need this module

    retries = connects = 0
    connecting = _Stopwatch(clock)
    while True:
        try:
            return await attempt()
        except CannotConnect as error:
            connects += 1
            delay = backoff_seconds(connects, random())
            if connects > error.max_retries or connecting.seconds() + delay > CONNECT_SECONDS:
                raise
            await _announce(error, connects, error.max_retries, delay, transcript)
            connecting.waited += delay
        except ModelError as error:
            if not error.worth_repeating or is_overflow(error) or retries >= model.max_retries:
                raise
            retries += 1
            connects, connecting = 0, _Stopwatch(clock)
            delay = backoff_seconds(retries, random())
            await _announce(error, retries, model.max_retries, delay, transcript)
        await clock.sleep(delay)


def request_retry(retrying: Retrying) -> RequestRetry:
    """Return the event that tells clients about a retry of a request to the model. `retrying` is the model client's
    report of the retry.
    """
    return RequestRetry(
        attempt=retrying.attempt,
        max_attempts=retrying.max_attempts,
        delay_ms=round(retrying.delay_seconds * 1000),
        reason=retrying.reason,
    )


class _Stopwatch:
    """Measures elapsed seconds with a clock that may be set back during the measurement. Therefore, the caller adds
    each of its delays to `waited`, and the measured time is never less than `waited`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began = clock, clock.now()
        self.waited = 0.0

    def seconds(self) -> float:
        return max(self._clock.now() - self._began, self.waited)


async def _announce(error: ModelError, number: int, max_retries: int, delay: float, transcript: Transcript) -> None:
    note = f"stream error: {error}; retrying {number}/{max_retries} in {_formatted_delay(delay)}…"
    await transcript.append(BackgroundEvent(message=replace_surrogates(note)))


def _formatted_delay(seconds: float) -> str:
    """Return a delay as text, such as `187.5ms` or `1.6s`."""
    return f"{round(seconds * 1000, 1):g}ms" if seconds < 1 else f"{round(seconds, 2):g}s"
