"""One conversation and the other processes of the home: finding out who has its turn, and following or taking over.

What is to be done goes to whoever has the turn, be it here or there; what happens there is shown here. Does not
know what is asked for, nor how processes speak to each other: `elsewhere.py` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from msgspec import Raw

from parley.conversation.state import Phase
from parley.errors import (
    HomeLost,
    InvalidRequest,
    NotOwned,
    OwnedElsewhere,
    OwnerUnresponsive,
    ParleyError,
    ShuttingDown,
    StoreError,
    StoreFailed,
    TurnIsRunning,
    UnknownConversation,
    WriteLockHeld,
)
from parley.ports.store import CALL_SECONDS
from parley.runtime.book import Book
from parley.runtime.deadline import Deadline
from parley.runtime.elsewhere import FOLLOW_SECONDS, Elsewhere, Neighbours
from parley.runtime.line import HERE, Line
from parley.runtime.questions import Questions
from parley.runtime.turns import Turn, Turns
from parley.runtime.writing import Writing
from parley.wire.ids import EventId, Seq
from parley.wire.peers import AnswerQuestion, InterruptTurn, RenameConversation, Submit

__all__ = ["Sharing", "TheirTurn"]

log = logging.getLogger(__name__)

BETWEEN_LOOKS_SECONDS: Final = 0.05
"""How long until it is looked again who has a conversation."""
LAST_ANSWERS_SECONDS: Final = 1.0
"""How long an ending server waits for what others were asked: as much as leaves it the time to pass that on."""

ToPeer = AnswerQuestion | InterruptTurn | RenameConversation | Submit
"""What can be asked of whoever has the turn."""


def _unresponsive(owner: OwnedElsewhere) -> StoreError:
    return OwnerUnresponsive(pid=owner.pid) if owner.lock_holder is None else WriteLockHeld(owner.lock_holder)


class TheirTurn(Turn):
    """A turn that another process began; its work is cancelled when it is over, whoever had it last."""

    def __init__(self, event_id: EventId, first: Seq) -> None:
        super().__init__(event_id, asyncio.get_running_loop().create_future())
        self.first = first
        """Who has the log up to here knows that it began."""


class Sharing:
    def __init__(
        self,
        book: Book,
        neighbours: Neighbours,
        *,
        turns: Turns,
        writing: Writing,
        questions: Questions,
        closing: asyncio.Event,
        gone: Callable[[], None],
    ) -> None:
        """`gone` is called when another process has deleted it."""
        self._book, self._neighbours, self._turns = book, neighbours, turns
        self._writing, self._questions = writing, questions
        self._closing, self._gone = closing, gone
        self._elsewhere: Elsewhere | None = None
        """Where its turn runs, if that is another process."""
        self.line = Line(self._where)
        """What clients of this process wish for."""
        self._joining = asyncio.Lock()
        self._joins: set[asyncio.Timeout] = set()
        """Who waits for that, or does it."""
        self._catching_up: asyncio.Task[None] | None = None
        self._look_again = False
        self._trouble = ""
        """Why that was in vain, the last time."""
        self._theirs: TheirTurn | None = None
        """The turn there that took a message from here."""
        book.on_taken = self._noticed
        questions.on_audience = self._audience_changed

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process has its turn, and tells us of it."""
        return self._elsewhere is not None

    @property
    def is_catching_up(self) -> bool:
        """Whether it is being seen to what other processes have done."""
        return self._catching_up is not None and not self._catching_up.done()

    @property
    def _phase(self) -> Phase:
        return self._book.folds.state.phase

    def _where(self) -> object | None:
        return self._elsewhere or (None if self._turns.running is None else HERE)

    # --- finding out -------------------------------------------------------------------

    async def look_after(self) -> None:
        """See to a turn that another process has, or had: one that runs is followed; one whose process is gone is
        ended if it ran, and goes on asking here if it asked.

        Returns when that is so, or cannot be, or takes too long because a process does not answer.
        """
        if not self._turns.has_one and self._elsewhere is None and self._phase is not Phase.IDLE:
            await asyncio.wait({self.catch_up()}, timeout=FOLLOW_SECONDS)

    def catch_up(self) -> asyncio.Task[None]:
        """Soon, see what other processes have done, and have done with what they left."""
        self._look_again = True
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up())
        return self._catching_up

    async def _catch_up(self) -> None:
        while self._look_again and not self._closing.is_set():
            self._look_again = False
            try:
                if not self._book.is_ours and self._elsewhere is None:
                    await self._book.load()
                    await self._follow_or_take_over()
            except UnknownConversation:
                self._gone()
            except ParleyError as error:
                if str(error) != self._trouble:
                    log.warning("%s: the turn of another process cannot be seen to: %s", self._book.id, error)
                self._trouble = str(error)

    async def _follow_or_take_over(self) -> None:
        patience = Deadline(CALL_SECONDS)
        while not self._turns.has_one and self._elsewhere is None and self._phase is not Phase.IDLE:
            try:
                async with self._writing.within(patience):
                    return
            except OwnedElsewhere as owner:
                await self._join(owner, patience)

    async def _join(self, owner: OwnedElsewhere, patience: Deadline) -> None:
        """Try to follow what another process does, one after another; whoever comes next may have an earlier
        deadline. Nobody does when the server ends.

        Raises:
            OwnerUnresponsive: the deadline has passed.
            WriteLockHeld: the deadline has passed, and the owner waits for the write lock.
        """
        if patience.is_past:
            raise _unresponsive(owner)
        join = asyncio.timeout_at(patience.at)
        try:
            async with join:
                self._joins.add(join)
                async with self._joining:
                    if self._elsewhere is None and not self._closing.is_set():
                        await self._follow(owner)
        except TimeoutError:
            if not self._closing.is_set():
                raise _unresponsive(owner) from None
        finally:
            self._joins.discard(join)

    async def _follow(self, owner: OwnedElsewhere) -> None:
        """Unless it is over by now."""
        try:
            elsewhere = await self._neighbours.follow(self._book, owner, over=self._left_alone)
        except NotOwned:
            await asyncio.sleep(BETWEEN_LOOKS_SECONDS)  # it is about to begin or to end, or was killed just now
            await self._book.load()
            return
        if not elsewhere.is_over:
            self._elsewhere = elsewhere
            self.line.move()
            self._audience_changed()

    # --- having it done ----------------------------------------------------------------

    async def here_or_there(
        self,
        here: Callable[[Deadline], Awaitable[None]],
        wish: ToPeer,
        patience: Deadline,
        *,
        answered: Callable[[Raw], None] = lambda result: None,
        is_done: Callable[[], bool] = lambda: False,
        holds_up: bool = False,
    ) -> None:
        """When it is its turn in the line, do it where the turn runs; repeat it where that is not known, or has
        changed meanwhile. `is_done` tells whether what another process was asked for in vain has come about there.
        If it `holds_up`, nothing behind it is done before: repeated, it must not hit what came behind it.
        `patience` is how long other processes are waited for.

        Raises:
            OwnerUnresponsive: another process has the turn and does not answer. It may do it all the same.
            ShuttingDown: the server ends.
        """
        was_asked = False
        silent: OwnerUnresponsive | None = None
        """Of one who was asked and has not said no."""
        if self._closing.is_set():
            raise ShuttingDown
        with self.line.place(holds_up=holds_up) as place:
            while True:
                await place.begin()
                if self._closing.is_set():
                    raise silent or ShuttingDown
                there = self._elsewhere
                try:
                    if there is None:
                        await here(patience)
                    elif patience.is_past:
                        raise TimeoutError
                    else:
                        async with asyncio.timeout_at(patience.at):
                            await there.ask(wish.METHOD, wish, answered=answered)
                    return
                except TimeoutError:
                    raise OwnerUnresponsive(pid=0 if there is None else there.pid) from None
                except NotOwned:
                    was_asked = True
                    if there is not None and there.is_over:
                        silent = OwnerUnresponsive(pid=there.pid)
                    if patience.is_past:
                        raise OwnerUnresponsive(pid=0 if there is None else there.pid) from None
                    if there is self._elsewhere:
                        self.follow_no_more()  # whatever was passed on behind it is refused as well
                except OwnedElsewhere as owner:
                    place.at = None  # until we know where it is, nobody behind it goes on
                    await self._join(owner, patience)
                except (ShuttingDown, StoreFailed):
                    if silent is not None and self._closing.is_set():
                        raise silent from None
                    raise
                except InvalidRequest:
                    if was_asked and is_done():
                        return
                    raise

    async def open_between_turns(self, deadline: Deadline) -> None:
        """Take the right to write, if no turn runs anywhere.

        Raises:
            TurnIsRunning: one does, or another process does not give the right to write back.
            ShuttingDown: the server ends before it does.
            StoreError: it cannot be.
        """
        patience = Deadline(FOLLOW_SECONDS)
        while self._phase is Phase.IDLE:
            try:
                await self._book.open(address=self._neighbours.address, until=deadline.at)
                return
            except OwnedElsewhere:
                if patience.is_past:
                    break
                if self._closing.is_set():
                    raise ShuttingDown from None
                await asyncio.sleep(BETWEEN_LOOKS_SECONDS)
                await self._book.load()
        raise TurnIsRunning

    # --- turns there -------------------------------------------------------------------

    def their_turn(self, event_id: EventId, first: Seq) -> Turn:
        """The turn there that took a message from here; it began in `first`, or joined there."""
        if self._theirs is None or self._theirs.event_id != event_id or self._theirs.work.done():
            if self._theirs is not None:
                self._theirs.work.cancel()  # it is over, since there is another
            self._theirs = TheirTurn(event_id, first)
        theirs = self._theirs
        if self._closing.is_set():
            self._leave_their_turn()
        elif self._elsewhere is None:
            self.catch_up()  # the turn that was followed is over, and the message began the next
        return theirs

    def let_go_of_their_turn(self) -> None:
        """If it is over; the log says so."""
        if (turn := self._theirs) is None or self._book.log.durable < turn.first:
            return
        if self._phase is Phase.IDLE or self._book.folds.state.event_id != turn.event_id:
            turn.work.cancel()
            self._theirs = None

    def follow_no_more(self) -> None:
        """Whoever has the turn does not tell us: what is on disk has to do, until it answers again."""
        if self._elsewhere is not None:
            self._elsewhere.lost()

    async def stop(self) -> None:
        """The server ends; what runs elsewhere goes on there. Whoever wished for something there hears what came of
        it, unless that takes long."""
        if self._catching_up is not None:
            self._catching_up.cancel()
        for join in self._joins:
            if not join.expired():
                join.reschedule(asyncio.get_running_loop().time())
        self._leave_their_turn()
        if self._elsewhere is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_ANSWERS_SECONDS):
                    await self.line.cleared()
        self.follow_no_more()

    def lose(self, lost: HomeLost) -> None:
        """The home is gone: what another process runs cannot be followed any more."""
        if self._theirs is not None:
            self._theirs.lost = lost
        self._leave_their_turn()
        self.follow_no_more()

    def _leave_their_turn(self) -> None:
        if self._theirs is not None:
            self._theirs.is_left = True
            self._theirs.work.cancel()

    def _noticed(self) -> None:
        """Another process has written something."""
        self._questions.changed()
        self.let_go_of_their_turn()

    def _left_alone(self) -> None:
        """What ran elsewhere is over, or its process is gone. Something else may have begun since."""
        self._elsewhere = None
        self._book.wake()
        if not self._closing.is_set():
            self.catch_up()

    def _audience_changed(self) -> None:
        if self._elsewhere is not None:
            here = self._questions
            self._elsewhere.read_by(is_read=here.is_watched, can_be_asked=here.can_be_asked, full=here.full)
