"""The turns of one conversation that run in this process: one at a time, and each reaches exactly one end.

Knows how a turn is begun, gone on with, cut short and left to another process. Does not know who may write, nor
who else has to hear that it is over: whoever begins one has seen to the first, and `on_over` tells the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import UNSET, UnsetType

from parley.agent.compaction import TokenMeter
from parley.agent.notify import run_notify_program
from parley.agent.turn import end_at_limit, run_turn
from parley.common.os_errors import limit_reached
from parley.config.types import Approvals, Settings
from parley.conversation.log import LogPayload
from parley.conversation.log_queries import last_text
from parley.conversation.records import TurnEnded, Why
from parley.conversation.state import Phase
from parley.conversation.turn_ends import KILLED, Interruption, turn_end
from parley.errors import INTERNAL_ERROR, RESOURCE_LIMIT, ConfigError, HomeLost, LeaseLost, StoreFailed
from parley.ports.model import Model
from parley.ports.tools import ToolContext
from parley.runtime.book import BETWEEN_TRIES_SECONDS, Book
from parley.runtime.choices import Choices
from parley.runtime.deadline import Deadline
from parley.runtime.means import Means
from parley.runtime.permits import Permits, Resumed
from parley.runtime.questions import Questions, answered
from parley.runtime.tool_servers import ToolServers
from parley.wire.events import LimitReached, SettledBy, Settlement
from parley.wire.ids import ApprovalId, EventId
from parley.wire.items import text_of
from parley.wire.text import replace_surrogates

__all__ = ["OurTurn", "Turn", "Turns"]

log = logging.getLogger(__name__)


class Turn:
    """A turn that runs, wherever that is."""

    def __init__(self, event_id: EventId, work: asyncio.Future[TurnEnded]) -> None:
        self.event_id = event_id
        self.work = work
        """Done when there is nothing more to do but to write down how it ended."""
        self.is_left = False
        """Whether it goes without an end, for another process to go on with."""
        self.lost: HomeLost | None = None
        """Why its end can never be written."""


class OurTurn(Turn):
    """A turn that runs in this process."""

    def __init__(self, event_id: EventId, work: asyncio.Future[TurnEnded], settings: Settings | None) -> None:
        super().__init__(event_id, work)
        self.settings = settings
        """What it began with; overrides that join it are for the next one. None: it was left asking, and they
        cannot be used as they are now."""
        self.cut_short: Interruption | None = None
        """Why it was told to end before its time."""

    @property
    def is_ending(self) -> bool:
        """Whether nothing more can join it."""
        return self.is_left or self.cut_short is not None or self.work.done()

    @property
    def bug(self) -> BaseException | None:
        """Why its work, which is done, could not go on; None: it could, or was told to end."""
        return None if self.work.cancelled() else self.work.exception()


class Turns:
    """Whoever begins a turn, or picks one up, has the right to write."""

    def __init__(
        self,
        book: Book,
        means: Means,
        *,
        choices: Choices,
        questions: Questions,
        permits: Permits,
        tool_servers: ToolServers,
    ) -> None:
        self._book, self._means = book, means
        self._choices, self._questions, self._permits = choices, questions, permits
        self._tool_servers = tool_servers
        self._model: tuple[Settings, Model] | None = None
        self._meters: dict[tuple[str, str], TokenMeter] = {}
        """One for each model, by its provider and its name."""
        self._turn: OurTurn | None = None
        self._over: asyncio.Task[None] | None = None
        self.on_over: Callable[[Turn], None] = lambda turn: None
        """Called when a turn has its end, or is left without one."""

    @property
    def has_one(self) -> bool:
        """Whether one is here that is not over, be it that only its end is to be written down."""
        return self._turn is not None

    @property
    def running(self) -> OurTurn | None:
        """The turn that runs, if one does. One that has begun and is not on disk yet does not run."""
        turn, state = self._turn, self._book.folds.state
        runs = turn is not None and state.phase is not Phase.IDLE and state.event_id == turn.event_id
        return turn if runs else None

    # --- beginning ---------------------------------------------------------------------

    def begin(self, settings: Settings) -> Turn:
        """Run the turn whose beginning was just written down."""
        return self._begin(settings, self._work(settings))

    async def pick_up(self, deadline: Deadline) -> None:
        """Have done with a turn that no process has: one that ran is ended, and one that asked goes on asking.

        Raises:
            StoreFailed: its end cannot be written down.
        """
        if self.running is not None:
            return
        if self._book.folds.state.phase is Phase.RUNNING:
            # A turn that is younger than this server was run by another one.
            was_elsewhere = self._book.folds.state.since > self._means.started_at
            message = KILLED if was_elsewhere else None
            await self._book.append(*self._end_for("restarted", message), until=deadline.at)
        elif self._book.folds.state.phase is Phase.ASKING:
            try:
                settings = self._of_turn()
            except ConfigError as error:
                log.warning("%s: what was left asking can be ended, but not go on: %s", self._book.id, error)
                settings = None
            self._begin(settings, self._go_on(settings))
            await asyncio.sleep(0)  # it asks before anybody answers

    def _of_turn(self) -> Settings:
        """Raises ConfigError: they cannot be used as they are now."""
        return self._choices.of(self._book.folds.wishes.of_turn).settings

    def _begin(self, settings: Settings | None, work: Awaitable[TurnEnded]) -> Turn:
        event_id = self._book.folds.state.event_id
        assert event_id is not None  # a turn has started
        self._means.neighbours.tell(self._book.id)
        turn = self._turn = OurTurn(event_id, asyncio.ensure_future(work), settings)
        self._over = asyncio.create_task(self._see_to_the_end_of(turn))
        return turn

    # --- working -----------------------------------------------------------------------

    def model_for(self, settings: Settings) -> Model:
        if self._model is None or self._model[0] is not settings:
            self._model = settings, self._means.open_model(settings, self._book.id)
        return self._model[1]

    async def _work(self, settings: Settings, resumed: Resumed | None = None) -> TurnEnded:
        await self._tool_servers.ready(settings)
        desk = ToolContext(
            settings=settings, transcript=self._book, permit=self._permits.for_turn(settings, resumed)
        )
        async with self._means.tools.open(desk) as hands:
            meter = self._meters.setdefault((settings.provider.id, settings.model), TokenMeter())
            model, ask_to_go_on = self.model_for(settings), self._permits.to_go_on(settings)
            return await run_turn(self._book, model, hands, settings, self._means.clock, meter, ask_to_go_on)

    async def _go_on(self, settings: Settings | None) -> TurnEnded:
        """With a turn that was left while it waited for an answer."""
        question = self._questions.open
        assert question is not None  # by the phase
        approvals = Approvals(on_timeout="hold") if settings is None else settings.approvals
        said = await self._questions.ask_again(approvals)
        if isinstance(reached := question.shown, LimitReached) and not said.is_yes:
            return await end_at_limit(reached, self._book)
        return await self._work(settings or self._of_turn(), Resumed(question.asked, said))

    def answer(
        self, approval_id: ApprovalId, decision: Settlement, *, by: SettledBy, reason: str | None = None
    ) -> asyncio.Future[None]:
        """Settle what the running turn asks. The result is there when that is on disk.

        Raises:
            UnknownQuestion, QuestionIsSettled: it does not ask that.
            ConfigError: it would go on, and its settings cannot be used as they are now.
        """
        question = self._questions.find(approval_id)
        ends = decision == "abort" or (
            isinstance(question.shown, LimitReached) and not answered(decision, reason).is_yes
        )
        if (turn := self.running) is not None and turn.settings is None and not ends:
            turn.settings = self._of_turn()
        return self._questions.settle(approval_id, decision, by=by, reason=reason)

    # --- ending ------------------------------------------------------------------------

    def interrupt(self, why: Interruption = "interrupted") -> None:
        """Cut the running turn short, if there is one."""
        if (turn := self.running) is not None:
            turn.cut_short = turn.cut_short or why
            self._questions.drop()  # at once: an answer that comes a moment later has nothing to settle
            turn.work.cancel()

    def leave(self) -> None:
        """Let another process go on with it, if there is one."""
        if self._turn is not None:
            self._turn.is_left = True
            self._questions.leave_open()
            self._turn.work.cancel()

    def lose(self, lost: HomeLost) -> None:
        """End without an end in the log, if a turn is here: nothing can be written any more."""
        if self._turn is not None:
            self._turn.lost = lost
            self.leave()

    def stop(self) -> None:
        """The server ends, and so does what runs. What waits for an answer stays open, for whoever comes."""
        turn = self.running
        if turn is None or turn.is_left or turn.cut_short is not None:
            return
        if self._questions.open is None:
            self.interrupt("stopped")
        else:
            self.leave()

    async def ending_is_over(self, deadline: Deadline) -> None:
        """Return when no turn is about to end, be it that its end could not be written down before.

        Raises:
            StoreFailed: it still cannot.
        """
        while (turn := self.running) is not None and turn.is_ending:
            await asyncio.wait({turn.work})
            if turn.is_left:
                await self.last_is_over()
            else:
                await self._write_end_of(turn, until=deadline.at)

    async def last_is_over(self) -> None:
        """Return when the turn that was begun last is over."""
        if self._over is not None:
            await asyncio.wait({self._over})

    async def _see_to_the_end_of(self, turn: OurTurn) -> None:
        """Every turn ends exactly once, and the log says how, whatever happened to the work."""
        await asyncio.wait({turn.work})
        try:
            if not turn.is_left:
                await self._end(turn)
        finally:
            if self._turn is turn:  # another may have begun already
                self._turn = None
            self.on_over(turn)

    async def _end(self, turn: OurTurn) -> None:
        if not turn.work.cancelled():
            if (bug := turn.work.exception()) is None:
                self._notify(turn, turn.work.result())
            elif isinstance(bug, LeaseLost):
                log.warning("%s: %s", self._book.id, bug)  # who took over has written the end, or will
            elif not isinstance(bug, StoreFailed | ConfigError | MemoryError):
                log.error("turn of %s failed", self._book.id, exc_info=bug)
        while True:  # until it is written, or we end: then whoever comes next finds a turn without an end
            try:
                await self._write_end_of(turn)
            except (LeaseLost, HomeLost):
                return
            except StoreFailed:
                if self._means.closing.is_set():
                    return
                await self._means.clock.sleep(BETWEEN_TRIES_SECONDS)
            else:
                return

    def _notify(self, turn: OurTurn, ended: TurnEnded) -> None:
        if ended.why == "done" and turn.settings is not None and turn.settings.notify:
            inputs = tuple(map(text_of, self._book.folds.state.inputs.values()))
            said = last_text(self._book.log.entries, up_to=self._book.log.last)
            run_notify_program(turn.settings, turn.event_id, inputs, said)

    async def _write_end_of(self, turn: OurTurn, until: float | None = None) -> None:
        """If it has none by now: where it could not be written down, whoever wants to go on tries again."""
        if self.running is turn and not isinstance(turn.bug, LeaseLost):
            self._questions.drop()
            await self._book.append(*self._end_of(turn), until=until)

    def _end_of(self, turn: OurTurn) -> tuple[LogPayload, ...]:
        if (bug := turn.bug) is None:
            return self._end_for(turn.cut_short or "stopped")
        if (limit := limit_reached(bug)) is not None:
            return self._end_for("failed", replace_surrogates(limit), RESOURCE_LIMIT)
        if isinstance(bug, StoreFailed | ConfigError):
            return self._end_for("failed", replace_surrogates(str(bug)), bug.code)
        message = f"internal error: {type(bug).__name__}: {bug}"
        return self._end_for("failed", replace_surrogates(message), INTERNAL_ERROR)

    def _end_for(
        self, why: Why, message: str | None = None, code: str | UnsetType = UNSET
    ) -> tuple[LogPayload, ...]:
        book = self._book
        outputs = book.log.kept_outputs()
        return turn_end(why, message, history=book.history, spending=book.spending, outputs=outputs, code=code)
