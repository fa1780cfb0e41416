"""The questions of one conversation: asked by its turn, held until somebody answers, settled exactly once.

Knows whether anybody reads the conversation and could be asked. Does not know how a client is asked: whoever
puts the question to one says so, and hears when it needs no answer any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, NamedTuple, Protocol

from msgspec import UNSET, Struct

from parley.common.shield import run_to_completion
from parley.config.types import Approvals
from parley.conversation.approvals import ApprovalEvent, Question
from parley.conversation.log import LogPayload
from parley.conversation.records import QuestionAsked, QuestionSettled
from parley.errors import HomeLost, LeaseLost, OwnerUnresponsive, QuestionIsSettled, StoreFailed
from parley.ports.clock import Clock
from parley.ports.store import CALL_SECONDS
from parley.runtime.book import BETWEEN_TRIES_SECONDS, Book
from parley.runtime.deadline import Deadline
from parley.runtime.errors import UnknownQuestion
from parley.wire.events import ApprovalSettled, Decision, SettledBy, Settlement
from parley.wire.ids import ApprovalId

__all__ = ["DISMISSED", "NOBODY", "Answer", "Answered", "Asked", "Questions", "answered"]

log = logging.getLogger(__name__)

NOBODY: Final = "nobody could be asked"
DISMISSED: Final = "the client dismissed the question"
"""Reasons of denials that no person gave."""
FOLLOWERS_SECONDS: Final = 3.0
"""Time after the start of a call in which clients of other processes of the home may begin to follow its turn."""
BETWEEN_READS_SECONDS: Final = 60.0
"""Whoever reads now and then counts as a reader for so long: longer than one read may wait for something new."""


class Answered(Struct, frozen=True, kw_only=True):
    """What somebody said."""

    decision: Decision
    reason: str | None = None

    @property
    def is_yes(self) -> bool:
        return self.decision in ("approved", "approved_for_session")


class _Reading(NamedTuple):
    """What somebody who reads can be asked."""

    can_be_asked: bool
    full: bool
    """Whether it sees our additions to the protocol; who does not cannot be asked about limits."""
    only_waits: bool
    """Whether it is a call that waits for the turn, whose client cannot answer while it waits."""


class Asked(Protocol):
    """Somebody to whom a question was put."""

    def settled(self, approval_id: ApprovalId, decision: Settlement) -> None:
        """It needs no answer any more. Must not fail."""
        ...


class Answer(Protocol):
    """Settles a question: at once where its turn runs here, and otherwise before the result is there."""

    def __call__(
        self, approval_id: ApprovalId, decision: Settlement, *, by: SettledBy, reason: str | None = None
    ) -> asyncio.Future[None]:
        """Fails with UnknownQuestion or QuestionIsSettled, and raises neither."""
        ...


def answered(decision: Settlement, reason: str | None) -> Answered:
    """What the turn is told that waits for it."""
    told: Decision = "denied" if decision == "timed_out" or decision == "dropped" else decision
    return Answered(decision=told, reason=reason)


class Questions:
    """What one conversation asks."""

    def __init__(
        self,
        book: Book,
        *,
        interrupt: Callable[[], None],
        answer: Answer,
        clock: Clock,
        has_others: Callable[[], bool] = lambda: False,
    ) -> None:
        """`interrupt` ends the turn; `answer` settles a question, whoever has the turn that waits for it;
        `has_others` says whether other processes use the home now."""
        self._book, self._interrupt, self._clock, self._has_others = book, interrupt, clock, has_others
        self.answer = answer
        self._answer: asyncio.Future[Answered] | None = None
        self._unwritten: ApprovalId | None = None
        """A question that is not on disk, and may never be."""
        self._approvals = Approvals()
        self._reading: dict[Hashable, _Reading] = {}
        """Who reads, as it was when it began to."""
        self._asked: list[Asked] = []
        """To whom the question was put that is, or was, open."""
        self._asked_about: ApprovalId | None = None
        self.on_audience: Callable[[], None] = lambda: None
        """Called when others may read, or be asked, than before."""
        self._read_lately: asyncio.Task[None] | None = None
        self._lately_can_answer = True
        self._waits_since = 0.0
        """When the last call began to wait."""
        self._patience: asyncio.Task[None] | None = None
        self._patient_for: float | None = None
        """How long, if it has patience now."""
        self._patient_since = 0.0
        self._spent_seconds = 0.0
        """How much of it is used up from before it last paused."""
        self._insisting: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> Question | None:
        """The question that waits for an answer, once it is on disk."""
        question = self._book.folds.ledger.open
        return None if question is None or question.approval_id == self._unwritten else question

    @property
    def can_be_asked(self) -> bool:
        """Whether somebody here could be asked something."""
        return bool(self._asked) or any(one.can_be_asked for one in self._reading.values())

    @property
    def full(self) -> bool:
        """Whether somebody here can be asked about limits, or else everybody could be told of them."""
        return self._answers_limits or all(one.full for one in self._reading.values())

    @property
    def _answers_limits(self) -> bool:
        return bool(self._asks_about_limit and self._asked) or any(
            one.can_be_asked and one.full for one in self._reading.values()
        )

    @property
    def _asks_about_limit(self) -> bool:
        return self.open is not None and self.open.asked.kind == "limit"

    @property
    def only_waits(self) -> bool:
        """Whether all that follow the conversation here are calls that wait for its turn."""
        reads_on = self._read_lately is not None and self._lately_can_answer
        return not reads_on and all(one.only_waits for one in self._reading.values())

    @property
    def seconds_for_followers(self) -> float:
        """Seconds left in which another process may begin to follow the turn of the call that waits."""
        left = max(0.0, self._waits_since + FOLLOWERS_SECONDS - self._clock.now())
        return left if left and self._has_others() else 0.0

    @property
    def is_returned(self) -> bool:
        """Whether a call that waits is to be answered with the open question: no client can be asked."""
        return (
            self.open is not None
            and self._book.is_ours
            and self._approvals.when_nobody == "return"
            and self.only_waits
            and not self.can_be_asked
        )

    @property
    def is_watched(self) -> bool:
        """Whether somebody reads, or was asked."""
        return bool(self._reading or self._asked or self._read_lately)

    def __contains__(self, approval_id: ApprovalId) -> bool:
        """Whether it is, or was, asked here."""
        return self._is_open(approval_id) or approval_id in self._book.folds.ledger.settled

    # --- asking and settling -----------------------------------------------------------

    async def ask(self, shown: ApprovalEvent, asked: QuestionAsked, approvals: Approvals) -> Answered:
        """Ask, wait, and return what was decided. One at a time.

        Does not return where the turn is to be stopped: it is cancelled. A question whose asking is cancelled
        is dropped, unless it was left open.
        """
        if self._book.folds.ledger.open is not None:
            raise RuntimeError("a question is open already")
        self._approvals, self._unwritten = approvals, asked.approval_id
        written = self._book.write(shown, asked, shown=self._written)
        return await self.ask_again(approvals, written)

    async def ask_again(self, approvals: Approvals, written: asyncio.Future[None] | None = None) -> Answered:
        """As `ask`, for the question that is open; `written` is done when it is on disk."""
        self._approvals = approvals
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._watch()
        try:
            if written is not None:
                await run_to_completion(written)
            answered = await answer
            if answered.decision == "abort":
                await asyncio.Event().wait()  # until the cancellation is here
            return answered
        finally:
            if self._answer is answer:
                self._answer = None
                self.drop()

    def _written(self) -> None:
        self._unwritten = None
        self._watch()

    def settle(
        self, approval_id: ApprovalId, decision: Settlement, *, by: SettledBy, reason: str | None = None
    ) -> asyncio.Future[None]:
        """Settle the open question: from here on nobody else can. The result is there when that is on disk.

        Raises:
            UnknownQuestion: it was never asked here.
            QuestionIsSettled: somebody was faster.
        """
        until = Deadline(CALL_SECONDS).at
        return self._settle(self.find(approval_id), decision, by=by, reason=reason, until=until)

    def _settle(
        self,
        question: Question,
        decision: Settlement,
        *,
        by: SettledBy,
        reason: str | None = None,
        until: float | None = None,
    ) -> asyncio.Future[None]:
        written = self._book.write(*_settlement(question, decision, by, reason), until=until)
        tell = partial(self._tell_if, self._answer, question.approval_id, decision, reason)
        if written.done():
            tell(written)
        else:
            written.add_done_callback(tell)  # behind the book's own: readers have seen it by then
        return written

    def _tell_if(
        self,
        answer: asyncio.Future[Answered] | None,
        approval_id: ApprovalId,
        decision: Settlement,
        reason: str | None,
        written: asyncio.Future[None],
    ) -> None:
        if written.exception() is None:
            self._tell(answer, approval_id, decision, reason)

    def _tell(
        self,
        answer: asyncio.Future[Answered] | None,
        approval_id: ApprovalId,
        decision: Settlement,
        reason: str | None,
    ) -> None:
        """From here on it is as if nobody had been asked."""
        asked, self._asked, self._asked_about = self._asked, [], None
        for one in asked:
            one.settled(approval_id, decision)
        self._watch()
        if answer is not None and not answer.done() and decision != "dropped":
            answer.set_result(answered(decision, reason))
        if decision == "abort":
            self._interrupt()

    def insist(
        self, approval_id: ApprovalId, decision: Settlement, *, by: SettledBy, reason: str | None = None
    ) -> asyncio.Future[None]:
        """As `answer`; where that cannot be written down it is tried again, for whoever said it cannot be told."""
        answer = partial(self.answer, approval_id, decision, by=by, reason=reason)
        insisting = asyncio.create_task(self._insist(answer(), answer))
        self._insisting.add(insisting)
        insisting.add_done_callback(self._insisting.discard)
        return insisting

    async def _insist(self, settled: asyncio.Future[None], again: Callable[[], asyncio.Future[None]]) -> None:
        while True:
            try:
                return await settled
            except HomeLost:
                raise
            except (StoreFailed, LeaseLost, OwnerUnresponsive) as error:
                log.warning("an answer is not written down yet: %s", error)
                await self._clock.sleep(BETWEEN_TRIES_SECONDS)
                settled = again()

    def find(self, approval_id: ApprovalId) -> Question:
        """The question, if it is open.

        Raises:
            UnknownQuestion: it was never asked here.
            QuestionIsSettled: somebody was faster.
        """
        if (question := self.open) is not None and question.approval_id == approval_id:
            return question
        if (before := self._book.folds.ledger.settled.get(approval_id)) is not None:
            raise QuestionIsSettled(before)
        raise UnknownQuestion

    def drop(self) -> None:
        """Nobody needs the answer any more; nothing happens where no question is open."""
        if (question := self._book.folds.ledger.open) is not None and self._book.is_ours:
            self._settle(question, "dropped", by="interrupt")

    def leave_open(self) -> None:
        """The turn goes, and the question stays for whoever comes: its asking may be cancelled."""
        self._answer = None
        self._stop_waiting()

    # --- who is there ------------------------------------------------------------------

    def read_by(self, reader: Hashable, *, can_be_asked: bool, full: bool, only_waits: bool = False) -> None:
        """Register a reader; `full` if it sees our additions, `only_waits` if it is a call waiting for the turn."""
        if only_waits:
            self._waits_since = self._clock.now()
        self._reading[reader] = _Reading(can_be_asked, full, only_waits)
        self._watch()

    def left_by(self, reader: Hashable) -> None:
        """It does not read any more; what was put to it stays open there."""
        if self._reading.pop(reader, None) is not None:
            self._watch()

    def read_once(self, *, can_answer: bool = True) -> None:
        """Somebody read, and will again, and cannot be asked; `can_answer` if it is offered `approvalAnswer`."""
        self._lately_can_answer = can_answer
        if self.open is None:  # then it will be known by its next read
            return
        if self._read_lately is not None:
            self._read_lately.cancel()
        self._read_lately = asyncio.create_task(self._count_as_reader())
        self._watch()

    def put_to(self, asked: Asked) -> None:
        """The open question was put to somebody."""
        self._asked.append(asked)
        self._asked_about = None if self.open is None else self.open.approval_id
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
        self.on_audience()
        heard = self._answers_limits if self._asks_about_limit else self.can_be_asked
        # Where another process has the turn, that one loses patience.
        unheard = self.open is not None and not heard and self._book.is_ours
        seconds = self._most_patience() if unheard and (self._reading or self._read_lately) else None
        if seconds != self._patient_for:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None
                self._spent_seconds += max(0.0, self._clock.now() - self._patient_since)
            if seconds is not None:
                self._patient_since = self._clock.now()
                self._patience = asyncio.create_task(self._lose_patience(seconds))
            self._patient_for = seconds
        if not unheard:
            self._spent_seconds = 0.0
        if self.open is None and self._read_lately is not None:
            self._read_lately.cancel()
            self._read_lately = None

    def _most_patience(self) -> float | None:
        """For how long whoever reads may be kept waiting; None: for as long as it takes."""
        if self._asks_about_limit and not self.full:
            return 0.0  # older clients know no such question, only the end of the turn (docs/protocol.md#limits)
        if self.only_waits and self._approvals.when_nobody != "wait":
            # "return": the call that waits is answered with the question, which stays open.
            return FOLLOWERS_SECONDS if self._approvals.when_nobody == "deny" else None
        held = self._approvals.on_timeout == "hold" or not self._approvals.timeout_seconds
        return None if held else float(self._approvals.timeout_seconds)

    def changed(self) -> None:
        """Another process has written: whoever was asked hears when the question is settled."""
        about = self._asked_about
        if about is not None and (decision := self._book.folds.ledger.settled.get(about)) is not None:
            self._asked_about = None
            self._tell(None, about, decision, None)
        else:
            self._watch()

    def _stop_waiting(self) -> None:
        for waiting in (self._patience, self._read_lately):
            if waiting is not None:
                waiting.cancel()
        self._patience = self._read_lately = self._patient_for = None

    async def _count_as_reader(self) -> None:
        await self._clock.sleep(BETWEEN_READS_SECONDS)
        self._read_lately = None
        self._watch()

    async def _lose_patience(self, seconds: float) -> None:
        denies_at_once = self.only_waits and self._approvals.when_nobody == "deny"
        left = self.seconds_for_followers if denies_at_once else max(0.0, seconds - self._spent_seconds)
        if seconds and left:
            await self._clock.sleep(left)
        self._patience = self._patient_for = None
        if (question := self.open) is None:
            return
        decision: Settlement = (
            "abort" if seconds and not denies_at_once and self._approvals.on_timeout == "abort" else "timed_out"
        )
        try:
            await self.insist(question.approval_id, decision, by="timeout", reason=NOBODY)
        except QuestionIsSettled:
            pass  # somebody answered after all
        except Exception:  # a bug of ours; the question stays open, and others may still answer it
            log.exception("a question that nobody could be asked was not settled")

    def _is_open(self, approval_id: ApprovalId) -> bool:
        return self.open is not None and self.open.approval_id == approval_id


def _settlement(
    question: Question, decision: Settlement, by: SettledBy, reason: str | None
) -> tuple[LogPayload, LogPayload]:
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
