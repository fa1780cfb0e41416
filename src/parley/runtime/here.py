"""What can be done in one conversation by this process: for its own clients, and for those of other processes.

Everything here takes the right to write where no turn has it. Where another process has it, that one has to be
asked: each of these then raises OwnedElsewhere, and nothing was changed. Each takes a deadline for the write lock
of the home, and raises WriteLockHeld when it has passed.
"""

from __future__ import annotations

from collections.abc import Callable

from parley.common.shield import run_to_completion
from parley.conversation.log import LogPayload
from parley.conversation.records import Renamed
from parley.conversation.state import Phase
from parley.runtime.book import Book
from parley.runtime.deadline import Deadline
from parley.runtime.elsewhere import Neighbours
from parley.runtime.messages import Accepted, Messages
from parley.runtime.questions import Questions
from parley.runtime.turns import Turns
from parley.runtime.writing import Writing
from parley.wire.peers import AnswerQuestion, InterruptTurn, RenameConversation, Submit

__all__ = ["Here"]


class Here:
    def __init__(
        self,
        book: Book,
        writing: Writing,
        neighbours: Neighbours,
        *,
        turns: Turns,
        messages: Messages,
        questions: Questions,
    ) -> None:
        self._book, self._writing, self._neighbours = book, writing, neighbours
        self._turns, self._messages, self._questions = turns, messages, questions

    async def submit(self, message: Submit, deadline: Deadline, *, accepted: Callable[[Accepted], None]) -> None:
        """Take a message. Raises what `Messages.take` does."""
        async with self._writing.within(deadline):
            await self._messages.take(message, deadline, accepted=accepted)

    async def answer(self, answer: AnswerQuestion, deadline: Deadline) -> None:
        """Settle a question.

        Raises:
            UnknownQuestion, QuestionIsSettled, ConfigError, StoreFailed: nothing was changed.
        """
        self._questions.find(answer.approval_id)
        if self._turns.running is not None:  # it must not wait for messages whose images are being read
            await self._messages.entered()
            await self._settle(answer)
            return
        async with self._writing.within(deadline):
            await self._settle(answer)

    async def _settle(self, answer: AnswerQuestion) -> None:
        settled = self._turns.answer(answer.approval_id, answer.decision, by=answer.by, reason=answer.reason)
        await run_to_completion(settled)

    async def interrupt(self, wish: InterruptTurn, deadline: Deadline) -> None:
        """Cut a turn short, also one that no process has any more; if one is named, only that.

        Raises:
            StoreFailed: it cannot be taken over.
        """
        if self._turns.running is None and self._book.folds.state.phase is not Phase.IDLE:
            async with self._writing.within(deadline):
                pass
        await self._messages.entered()
        if wish.event_id in (None, self._book.folds.state.event_id):
            self._turns.interrupt()

    async def rename(self, wish: RenameConversation, deadline: Deadline) -> None:
        """Give it a title. Raises StoreFailed."""
        await self.append(Renamed(title=wish.title), deadline=deadline)
        self._neighbours.tell(self._book.id)

    async def append(self, *happened: LogPayload, deadline: Deadline) -> None:
        """Append entries that belong to no turn, also while none runs. Raises StoreFailed."""
        if self._turns.running is not None:
            await self._book.writable(until=deadline.at)
        if self._turns.running is not None:
            await self._book.append(*happened, until=deadline.at)
            return
        async with self._writing.within(deadline):
            await self._book.append(*happened, until=deadline.at)
