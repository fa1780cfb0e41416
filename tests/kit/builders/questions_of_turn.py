"""The questions of a turn that nobody runs."""

from __future__ import annotations

import asyncio
from typing import Any

from kit.builders.records import turn_started
from kit.servers.local_server import StandingClock
from parley.agent.sandbox_policy import Roots
from parley.config.types import ResolvedSettings, SettingsOverrides
from parley.ports.store import Store
from parley.runtime.book import Book
from parley.runtime.choices import Choices
from parley.runtime.permits import Trust
from parley.runtime.questions import Questions
from parley.wire.events import Settlement
from parley.wire.ids import ApprovalId, ConversationId

__all__ = ["new_trust", "questions_in"]


def new_trust() -> Trust:
    """That of a conversation in which nothing was allowed yet."""

    def choose(wanted: SettingsOverrides, before: ResolvedSettings | None) -> ResolvedSettings:
        raise AssertionError("nobody needs to know")

    return Trust(Roots({}), Choices(choose))


async def questions_in(store: Store, clock: StandingClock) -> Questions:
    """Those of a conversation in the middle of a turn."""
    book = Book(ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8"), store, clock)
    await book.create(turn_started())
    await book.open(address="")

    def answer(approval_id: ApprovalId, decision: Settlement, **more: Any) -> asyncio.Future[None]:
        return questions.settle(approval_id, decision, **more)

    questions = Questions(book, interrupt=lambda: None, answer=answer, clock=clock)
    return questions
