"""A model whose reply depends on the message: a text, a slow text, a call, a long text, or a failure."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from parley.testing import (
    Call,
    Cut,
    Delay,
    Failure,
    Pieces,
    RawBody,
    Reasoning,
    RecordedRequest,
    Reply,
    Says,
    ScriptedModel,
)
from parley.testing.render import render, writer_for
from parley.testing.replies import Ending

__all__ = ["AT_LENGTH", "LET_ME_SEE", "LONG_TEXT", "RandomModel", "forgetting", "only_one"]

LONG_DELTAS: Final = 10_000
"""The number of deltas of a long reply. Their events exceed the pipe and the server's buffer together."""
LONG_TEXT: Final = "abcdefgh" * LONG_DELTAS
AT_LENGTH: Final = "at length"
LET_ME_SEE: Final = "Let me see."


class RandomModel:
    """A model that chooses the reply according to the message, and sometimes fails at the first attempt."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._tries: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.said_at_length = asyncio.Event()
        """An event that is set when the server has received a complete long reply."""

    def answer_to(self, question: str) -> str:
        """Return the final text of the reply to a message, if at least one attempt succeeds."""
        luck = Random(f"{self._seed}/answer/{question}")
        words = [luck.choice(("so", "é", "\U0001f600", '"quoted"', "much longer words")) for _ in range(20)]
        return f"[{question}] " + " ".join(words)

    def reply(self, request: RecordedRequest) -> Reply:
        question, is_answered = _last_question(request)
        if question.endswith(AT_LENGTH):
            return self._at_length(request, question, is_answered)
        luck = Random(f"{self._seed}/mood/{question}")
        reply_kind = luck.choices(
            ("well", "slowly", "call", "cut", "refused once", "cut for ever", "refused"), (40, 20, 8, 8, 8, 3, 3)
        )[0]
        self._tries[question] += 1
        first = self._tries[question] == 1
        self.counts[reply_kind] += 1
        text = self.answer_to(question)
        how: Ending = luck.choice(("close", "reset", "end"))
        match reply_kind:
            case "slowly":
                middle = len(text) // 2
                return Says(
                    (Reasoning("hm"), Pieces(text[:middle], 7), Delay(luck.uniform(0.01, 0.1)), text[middle:])
                )
            case "call" if not is_answered:
                return Says((Reasoning("hm"), LET_ME_SEE, Call("no_such_tool", {"a": 1})))
            case "cut" if first:
                return Cut(steps=(Pieces(text, 9),), at=luck.randrange(400), how="close" if how == "end" else how)
            case "cut for ever":
                return Cut(steps=(text[:30],), how="close")
            case "refused once" if first:
                return Failure(status=503, headers={"retry-after": "0"})
            case "refused":
                return Failure(status=400, body="no")
            case _:
                return Says((Pieces(text, luck.choice((3, 20, 1000))),))

    def _at_length(self, request: RecordedRequest, question: str, is_answered: bool) -> Reply:
        """Build a reply of very many deltas and a call. The output of the call shows that the server has read
        all deltas.
        """
        if is_answered:
            self.said_at_length.set()
            return Says((self.answer_to(question),))
        self.counts[AT_LENGTH] += 1
        assert request.api is not None
        steps = (Pieces(LONG_TEXT, 8), Call("no_such_tool", {}, call_id="c1"))
        parts = render(writer_for(request.api), steps)
        return RawBody(body=b"".join(part for part in parts if isinstance(part, bytes)), cut_every=64 * 1024)


def _last_question(request: RecordedRequest) -> tuple[str, bool]:
    """Return the last message of the user, and whether the model has replied to it."""
    items = request.body["messages" if request.api == "chat" else "input"]
    asked = max(place for place, item in enumerate(items) if item.get("role") == "user")
    content = items[asked]["content"]
    return content if request.api == "chat" else content[0]["text"], asked + 1 < len(items)


def forgetting(model: ScriptedModel, random_model: RandomModel) -> Callable[[RecordedRequest], Reply]:
    """Return a handler that replies like `random_model` and discards recorded requests.

    Otherwise the requests would fill the memory.
    """

    def reply(request: RecordedRequest) -> Reply:
        model.requests.clear()
        return random_model.reply(request)

    return reply


def only_one(text: str) -> RawBody:
    """Build a complete reply on a connection that is closed after it."""
    parts = render(writer_for("chat"), (text,))
    return RawBody(body=b"".join(part for part in parts if isinstance(part, bytes)))
