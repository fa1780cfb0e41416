"""Compares the usage of a turn with its limits, and asks the user before the turn exceeds a limit.

Limits are checked before each request to the model and before each tool call. A request or call in progress is not
interrupted. `runtime/permissions.py` decides which clients are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from parley.agent.cost import estimated_micros, price_of
from parley.agent.tokens import estimate
from parley.config.toml_lines import written_key
from parley.config.types import Limits, Settings
from parley.conversation.records import ModelItem, TokensEstimated
from parley.conversation.usage import UsageTotals
from parley.errors import ModelStreamBroken, ReplyTooLarge, StoreError
from parley.ports.clock import Clock
from parley.ports.model import ModelRequest
from parley.ports.transcript import Transcript
from parley.wire.events import BackgroundEvent, LimitReached
from parley.wire.text import replace_surrogates

__all__ = ["AskToContinue", "LimitGate", "counted_if_cut", "estimated_cost", "notice_without_price"]


class AskToContinue(Protocol):
    """A function that asks the user whether a turn may exceed a limit, and returns whether the user agrees. If the
    user stops the turn, the call of this function is cancelled.
    """

    async def __call__(self, reached: LimitReached) -> bool: ...


class LimitGate:
    """Checks the limits of one turn, and asks the user before the turn exceeds a limit."""

    def __init__(self, limits: Limits, transcript: Transcript, clock: Clock, ask: AskToContinue) -> None:
        self._limits, self._transcript, self._clock, self._ask = limits, transcript, clock, ask

    async def before_request(self) -> LimitReached | None:
        """Check the limits on tokens, time and cost before a request to the model.

        If a limit is reached and the user does not allow the turn to exceed it, return this limit; otherwise return
        None.
        """
        most = self._limits
        return (
            await self._pass("turn_tokens", self._spent.turn_tokens, most.turn_tokens)
            or await self._pass("turn_seconds", self._seconds, most.turn_seconds)
            or await self._pass("conversation_tokens", self._spent.conversation_tokens, most.conversation_tokens)
            or await self._pass("turn_cost", self._spent.turn_micros, _micros(most.turn_cost))
            or await self._pass(
                "conversation_cost", self._spent.conversation_micros, _micros(most.conversation_cost)
            )
        )

    async def before_call(self) -> LimitReached | None:
        """Check the limits on time and on the number of tool calls before a tool call.

        The limits on tokens and cost are not checked, because a tool call uses no tokens.

        If a limit is reached and the user does not allow the turn to exceed it, return this limit; otherwise return
        None.
        """
        if (reached := await self._pass("turn_seconds", self._seconds, self._limits.turn_seconds)) is not None:
            return reached
        return await self._pass("turn_calls", self._spent.turn_calls, self._limits.turn_calls)

    async def _pass(self, limit: str, used: int, size: int) -> LimitReached | None:
        if size and used >= (most := _allowed(size, self._spent.agreed.get(limit, 0))):
            reached = LimitReached(limit=limit, used=used, allowed=most)
            if not await self._ask(reached):
                return reached
        return None

    @property
    def _spent(self) -> UsageTotals:
        return self._transcript.usage

    @property
    def _seconds(self) -> int:
        return int(self._spent.turn_seconds(self._clock.now()))


def _micros(amount: float) -> int:
    """Return an amount of money as a number of millionths of the currency unit. The result for a positive amount is
    at least 1.
    """
    return max(round(amount * 1_000_000), 1) if amount else 0


def _allowed(size: int, agreed: int) -> int:
    """Return the usage at which the user must be asked next: the smallest multiple of the limit `size` that is
    greater than `agreed`. `agreed` is the usage at which the user last agreed to continue.
    """
    return (agreed // size + 1) * size


def notice_without_price(settings: Settings) -> tuple[BackgroundEvent, ...]:
    """Return a tuple with the event that tells clients why the limits on the cost have no effect: the price of the
    model is unknown.

    The tuple is empty if there is no limit on the cost, or if the price is known.
    """
    limits = settings.limits
    if not (limits.turn_cost or limits.conversation_cost) or price_of(settings) is not None:
        return ()
    table = written_key(("prices", settings.model))
    text = (
        f"The price of the model {settings.model} is unknown, so limits.turn_cost and limits.conversation_cost "
        f"have no effect. Set {table}.input and {table}.output."
    )
    return (BackgroundEvent(message=replace_surrogates(text)),)


def estimated_cost(
    request: ModelRequest, said: Sequence[ModelItem], settings: Settings
) -> tuple[TokensEstimated, ...]:
    """Estimate the token usage of a response whose usage the provider did not report. `said` contains the items of
    the response. Return a tuple with one record, which contains the estimated tokens and their cost. The tuple is
    empty if the settings contain no limit on tokens or cost.
    """
    limits = settings.limits
    if not (limits.turn_tokens or limits.conversation_tokens or limits.turn_cost or limits.conversation_cost):
        return ()
    given, made = estimate(request), estimate(ModelRequest(instructions="", context=(), history=said))
    return (TokensEstimated(tokens=given + made, cost_micros=estimated_micros(settings, given, made)),)


@asynccontextmanager
async def counted_if_cut(
    request: ModelRequest, said: Callable[[], Sequence[ModelItem]], transcript: Transcript, settings: Settings
) -> AsyncIterator[None]:
    """If the response is interrupted or fails in the `async with` block, record its estimated usage, because the
    provider charges for it. `said` returns the items that have been received so far.
    """
    try:
        yield
    except (ModelStreamBroken, ReplyTooLarge, asyncio.CancelledError):
        with suppress(StoreError):  # the error that ends the turn is more important than this failure
            await transcript.append(*estimated_cost(request, said(), settings))
        raise
