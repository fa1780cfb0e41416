"""The questions of one conversation: asked by its turn, held until somebody answers, settled exactly once.

Knows whether anybody reads the conversation and could be asked. Does not know how a client is asked: whoever
puts the question to one says so, and hears when it needs no answer any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from msgspec import UNSET, Struct

from parley.config.types import Approvals
from parley.conversation.log import Happened
from parley.conversation.questions import Ledger, Question, Shown
from parley.conversation.records import QuestionAsked, QuestionSettled
from parley.errors import QuestionIsSettled, UnknownQuestion
from parley.ports.clock import Clock
from parley.wire.events import ApprovalSettled, Decision, SettledBy, Settlement
from parley.wire.ids import ApprovalId

__all__ = ["Answered", "Asked", "Questions"]

log = logging.getLogger(__name__)

NOBODY: Final = "nobody could be asked"
BETWEEN_READS_SECONDS: Final = 60.0
"""Whoever reads now and then counts as a reader for so long: longer than one read may wait for something new."""


class Answered(Struct, frozen=True, kw_only=True):
    """What somebody said."""

    decision: Decision
    reason: str | None = None


class Asked(Protocol):
    """Somebody to whom a question was put."""

    def settled(self, approval_id: ApprovalId, decision: Settlement) -> None:
        """It needs no answer any more. Must not fail."""
        ...


class Questions:
    """What one conversation asks."""

    def __init__(
        self, ledger: Ledger, *, append: Callable[..., None], interrupt: Callable[[], None], clock: Clock
    ) -> None:
        """`append` writes down what it is given, all of it or nothing, and shows it; `interrupt` ends the turn."""
        self._ledger, self._append, self._interrupt, self._clock = ledger, append, interrupt, clock
        self._answer: asyncio.Future[Answered] | None = None
        self._approvals = Approvals()
        self._reading: dict[Hashable, bool] = {}
        """Who reads, and whether it could be asked when it began to."""
        self._asked: list[Asked] = []
        """To whom the open question was put."""
        self._read_lately: asyncio.Task[None] | None = None
        self._patience: asyncio.Task[None] | None = None
        self._patient_since = 0.0
        self._spent_seconds = 0.0
        """How much of it is used up from before it last paused."""

    @property
    def open(self) -> Question | None:
        """The question that waits for an answer."""
        return self._ledger.open

    def __contains__(self, approval_id: ApprovalId) -> bool:
        """Whether it is, or was, asked here."""
        return self._is_open(approval_id) or approval_id in self._ledger.settled

    # --- asking and settling -----------------------------------------------------------

    async def ask(self, shown: Shown, asked: QuestionAsked, approvals: Approvals) -> Answered:
        """Ask, wait, and return what was decided. One at a time.

        Does not return where the turn is to be stopped: it is cancelled. A question whose asking is cancelled
        is dropped.
        """
        if self.open is not None:
            raise RuntimeError("a question is open already")
        self._approvals = approvals
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answer = answer
        try:
            self._append(shown, asked)
            self._watch()
            answered = await answer
            if answered.decision == "abort":
                await asyncio.Event().wait()  # until the cancellation is here
            return answered
        finally:
            self.drop()

    def settle(
        self, approval_id: ApprovalId, decision: Settlement, *, by: SettledBy, reason: str | None = None
    ) -> None:
        """Settle the open question; from here on it is as if nobody had been asked.

        Raises:
            UnknownQuestion: it was never asked here.
            QuestionIsSettled: somebody was faster.
        """
        question = self.open
        if question is None or question.approval_id != approval_id:
            if (before := self._ledger.settled.get(approval_id)) is not None:
                raise QuestionIsSettled(before)
            raise UnknownQuestion
        self._append(*_settlement(question, decision, by, reason))
        asked, self._asked = self._asked, []
        for one in asked:
            one.settled(approval_id, decision)
        self._watch()
        if self._answer is not None and not self._answer.done() and decision != "dropped":
            told: Decision = "denied" if decision == "timed_out" else decision
            self._answer.set_result(Answered(decision=told, reason=reason))
        if decision == "abort":
            self._interrupt()

    def drop(self) -> None:
        """Nobody needs the answer any more; nothing happens where no question is open."""
        if (question := self.open) is not None:
            self.settle(question.approval_id, "dropped", by="interrupt")

    # --- who is there ------------------------------------------------------------------

    def read_by(self, reader: Hashable, *, can_be_asked: bool) -> None:
        """Somebody begins to read."""
        self._reading[reader] = can_be_asked
        self._watch()

    def left_by(self, reader: Hashable) -> None:
        """It does not read any more; what was put to it stays open there."""
        if self._reading.pop(reader, None) is not None:
            self._watch()

    def read_once(self) -> None:
        """Somebody read, and will again, and cannot be asked."""
        if self.open is None:  # then it will be known by its next read
            return
        if self._read_lately is not None:
            self._read_lately.cancel()
        self._read_lately = asyncio.create_task(self._count_as_reader())
        self._watch()

    def put_to(self, asked: Asked) -> None:
        """The open question was put to somebody."""
        self._asked.append(asked)
        self._watch()

    def forgotten_by(self, asked: Asked) -> None:
        """Somebody is gone and will not answer."""
        if asked in self._asked:
            self._asked.remove(asked)
            self._watch()

    # --- where nobody can answer -------------------------------------------------------

    def _watch(self) -> None:
        """Have patience while some read and none of them can be asked.

        It pauses while nobody reads, and begins anew when somebody who can be asked was there.
        """
        unheard = self.open is not None and not self._asked and not any(self._reading.values())
        ends = bool(self._approvals.timeout_seconds) and self._approvals.on_timeout != "hold"
        if unheard and ends and (self._reading or self._read_lately):
            if self._patience is None:
                self._patient_since = self._clock.now()
                self._patience = asyncio.create_task(self._lose_patience())
        elif self._patience is not None:
            self._patience.cancel()
            self._patience = None
            self._spent_seconds += max(0.0, self._clock.now() - self._patient_since)
        if not unheard:
            self._spent_seconds = 0.0
        if self.open is None and self._read_lately is not None:
            self._read_lately.cancel()
            self._read_lately = None

    async def _count_as_reader(self) -> None:
        await self._clock.sleep(BETWEEN_READS_SECONDS)
        self._read_lately = None
        self._watch()

    async def _lose_patience(self) -> None:
        await self._clock.sleep(max(0.0, self._approvals.timeout_seconds - self._spent_seconds))
        self._patience = None
        if (question := self.open) is None:
            return
        decision: Settlement = "abort" if self._approvals.on_timeout == "abort" else "timed_out"
        try:
            self.settle(question.approval_id, decision, by="timeout", reason=NOBODY)
        except Exception:  # a bug of ours; the question stays open, and others may still answer it
            log.exception("a question that nobody could be asked was not settled")

    def _is_open(self, approval_id: ApprovalId) -> bool:
        return self.open is not None and self.open.approval_id == approval_id


def _settlement(
    question: Question, decision: Settlement, by: SettledBy, reason: str | None
) -> tuple[Happened, Happened]:
    """The record, and the event right behind it."""
    approval_id = question.approval_id
    return (
        QuestionSettled(approval_id=approval_id, decision=decision, by=by, reason=reason),
        ApprovalSettled(
            approval_id=approval_id,
            call_id=question.asked.call_id,
            decision=decision,
            by=by,
            reason=UNSET if reason is None else reason,
        ),
    )
