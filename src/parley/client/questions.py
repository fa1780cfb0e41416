"""What the server asks its client, and how an answer is written."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from parley.wire import tools
from parley.wire.elicitation import ElicitationAnswer, ElicitationParams
from parley.wire.events import Decision

__all__ = ["Answer", "OnQuestion", "OpenQuestion", "Question", "ask"]

Question: TypeAlias = ElicitationParams
"""May a command run, may a patch be applied, may the agent go on?"""

OpenQuestion: TypeAlias = tools.Question
"""One that waits for an answer, as the server lists it."""

Answer: TypeAlias = Decision | ElicitationAnswer
"""One of the four words, or a whole answer: with a reason, or in the form of `action` and `content`."""

OnQuestion: TypeAlias = Callable[[Question], Awaitable[Answer] | Answer]


async def ask(on_question: OnQuestion, question: Question) -> ElicitationAnswer:
    """What the callback says, as the server wants to read it."""
    answer = on_question(question)
    if inspect.isawaitable(answer):
        answer = await answer
    return answer if isinstance(answer, ElicitationAnswer) else ElicitationAnswer(decision=answer)
