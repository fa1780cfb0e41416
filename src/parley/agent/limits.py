"""How far a turn goes by itself: what it has used, what it may use, and the question whether it may use more.

Looked at between steps, before each request to the model and before each call: whatever is under way is not cut
short. Does not know who is asked nor how.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from parley.agent.tokens import estimate
from parley.config.types import Limits
from parley.conversation.records import ModelItem, TokensEstimated
from parley.conversation.usage import UsageTotals
from parley.errors import ModelStreamBroken, ReplyTooLarge, StoreError
from parley.ports.clock import Clock
from parley.ports.model import ModelRequest
from parley.ports.transcript import Transcript
from parley.wire.events import LimitReached

__all__ = ["AskToGoOn", "LimitGate", "counted_if_cut", "estimated_cost"]


class AskToGoOn(Protocol):
    """Asks whether a turn may go beyond a limit.

    Whoever is asked may stop the turn instead: it is then cancelled.
    """

    async def __call__(self, reached: LimitReached) -> bool: ...


class LimitGate:
    """One turn's way past its limits."""

    def __init__(self, limits: Limits, transcript: Transcript, clock: Clock, ask: AskToGoOn) -> None:
        self._limits, self._transcript, self._clock, self._ask = limits, transcript, clock, ask

    async def before_request(self) -> LimitReached | None:
        """Wait for a yes where one is needed; what was reached, where somebody said no."""
        most = self._limits
        return (
            await self._pass("turn_tokens", self._spent.turn_tokens, most.turn_tokens)
            or await self._pass("turn_seconds", self._seconds, most.turn_seconds)
            or await self._pass("conversation_tokens", self._spent.conversation_tokens, most.conversation_tokens)
        )

    async def before_call(self) -> LimitReached | None:
        """As `before_request`. A call costs no tokens."""
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
        return self._transcript.spending

    @property
    def _seconds(self) -> int:
        return int(self._spent.turn_seconds(self._clock.now()))


def _allowed(size: int, agreed: int) -> int:
    """How much may be used: a limit is raised by its own size, as often as it takes to be beyond what was used when
    somebody last agreed."""
    return (agreed // size + 1) * size


def estimated_cost(request: ModelRequest, said: Sequence[ModelItem], limits: Limits) -> tuple[TokensEstimated, ...]:
    """What to write down where the provider did not tell what a response cost; nothing, if no limit needs it."""
    if not (limits.turn_tokens or limits.conversation_tokens):
        return ()
    reply = ModelRequest(instructions="", context=(), history=said)
    return (TokensEstimated(tokens=estimate(request) + estimate(reply)),)


@asynccontextmanager
async def counted_if_cut(
    request: ModelRequest, said: Callable[[], Sequence[ModelItem]], transcript: Transcript, limits: Limits
) -> AsyncIterator[None]:
    """Write down what a response cost that is interrupted or breaks off in this block: its provider counts it."""
    try:
        yield
    except (ModelStreamBroken, ReplyTooLarge, asyncio.CancelledError):
        with suppress(StoreError):  # how the turn ends matters more
            await transcript.append(*estimated_cost(request, said(), limits))
        raise
