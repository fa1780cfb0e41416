"""A turn that reaches its limits: the requests to continue, and the effect of each answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.builders.approvals import approval_settlement, limit_approval
from kit.builders.events import agent_message, error, task_complete, task_started, token_count, user_message
from kit.builders.records import (
    call,
    call_output,
    message,
    model_asked,
    model_said,
    response_used,
    turn_ended,
    turn_started,
)
from kit.builders.transcript import RecordingTranscript
from kit.models.raw_provider import settings
from parley.agent.compaction import TokenMeter
from parley.agent.turn import run_turn
from parley.config.types import Limits
from parley.conversation.log import LogPayload
from parley.conversation.records import CallItem, TokensEstimated, TurnEnded
from parley.ports.model import CallDone, Chunk, MessageDone, ModelRequest, ResponseDone, ToolSpec
from parley.wire.events import LimitReached, TokenCount
from parley.wire.items import InputItem

SETTINGS = settings(project_doc_max_bytes=0)

YES, NO = True, False


class Says:
    """A model that makes this many calls in each response, and then ends the turn."""

    max_retries = 0

    def __init__(self, *calls: int, usage: TokenCount | None = None) -> None:
        self.asked = 0
        self._calls, self._usage = list(calls), usage

    def why_unsupported(self, item: InputItem) -> str | None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        self.asked += 1
        wanted = self._calls.pop(0) if self._calls else 0
        said: list[Chunk] = [CallDone(call(f"c{self.asked}.{number}")) for number in range(wanted)]
        yield [*(said or [MessageDone(message("Done"))]), ResponseDone(self._usage)]


class CountingTools:
    """Tools that only count their calls."""

    def __init__(self, ran: Callable[[], None] = lambda: None) -> None:
        self.ran = 0
        self._ran = ran

    def specs(self) -> tuple[ToolSpec, ...]:
        return ()

    async def run(self, call: CallItem) -> str:
        self.ran += 1
        self._ran()
        return "ok"


class Clock:
    """A clock that stands still."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing is waited for")


class Person:
    """A person who answers at once, and denies when no answer is left."""

    def __init__(self, transcript: RecordingTranscript, *answers: bool) -> None:
        self.asked: list[LimitReached] = []
        self.approvals = 0
        self._transcript, self._answers = transcript, list(answers)

    async def __call__(self, reached: LimitReached) -> bool:
        self.asked.append(reached)
        answer = self._answers.pop(0) if self._answers else NO
        self.approvals += answer
        number = len(self.asked)
        settled = approval_settlement(number, "approved" if answer else "denied")
        self._transcript.write(reached, limit_approval(number)[1], settled)
        return answer


def begun(*before: LogPayload) -> RecordingTranscript:
    """Create a turn that has just begun."""
    return RecordingTranscript(*before, turn_started(), task_started(), user_message("go"))


async def turn_of(
    transcript: RecordingTranscript,
    model: Says,
    person: Person,
    limits: Limits,
    *,
    tools: CountingTools | None = None,
    clock: Clock | None = None,
) -> TurnEnded:
    chosen = replace(SETTINGS, limits=limits)
    return await run_turn(
        transcript, model, tools or CountingTools(), chosen, clock or Clock(), TokenMeter(), person
    )


def reached(limit: str, used: int, allowed: int) -> LimitReached:
    return LimitReached(limit=limit, used=used, allowed=allowed)


@given(
    size=st.integers(1, 4),
    responses=st.lists(st.integers(1, 5), max_size=4),
    answers=st.lists(st.booleans(), max_size=5),
)
def test_each_approval_allows_as_many_calls_as_the_limit(
    size: int, responses: list[int], answers: list[bool]
) -> None:
    transcript = begun()
    person = Person(transcript, *answers)

    def within() -> None:
        assert tools.ran <= size * (1 + person.approvals)

    tools = CountingTools(ran=within)
    limits = Limits(turn_calls=size)
    ended = asyncio.run(turn_of(transcript, Says(*responses), person, limits, tools=tools))

    if ended.why == "done":
        assert tools.ran == sum(responses)
    else:
        assert tools.ran == size * (1 + person.approvals) < sum(responses)
    assert [(one.used, one.allowed) for one in person.asked] == [
        (size * number, size * number) for number in range(1, len(person.asked) + 1)
    ]
    assert transcript.history.open_calls == ()


async def test_a_turn_that_may_not_continue_ends_with_an_error_and_the_model_is_not_asked_again() -> None:
    spent = token_count(input_tokens=3, output_tokens=2)
    transcript, model = begun(), Says(3, usage=spent)
    ended = await turn_of(transcript, model, Person(transcript, NO), Limits(turn_calls=1))

    assert ended == turn_ended("failed", "Limit reached: turn_calls", "limit_reached")
    assert model.asked == 1
    assert transcript.payloads == [
        model_asked(1),
        *(model_said(call(f"c1.{number}")) for number in range(3)),
        response_used(spent),
        call_output("c1.0", "ok"),
        reached("turn_calls", 1, 1),
        limit_approval(1)[1],
        approval_settlement(1, "denied"),
        call_output("c1.1", "aborted"),
        call_output("c1.2", "aborted"),
        spent,
        error("Limit reached: turn_calls", "failed", "limit_reached"),
        task_complete(None),
        ended,
    ]


async def test_a_turn_that_ends_at_its_limit_does_not_ask() -> None:
    transcript = begun()
    person = Person(transcript)
    cost = token_count(input_tokens=10, output_tokens=5)
    limits = Limits(turn_calls=2, turn_tokens=16, conversation_tokens=30)
    ended = await turn_of(transcript, Says(2, usage=cost), person, limits)

    assert (ended, person.asked) == (turn_ended(), [])
    assert transcript.usage.turn_tokens == 30


async def test_an_approval_raises_a_limit_until_it_exceeds_the_usage() -> None:
    transcript = begun()
    person = Person(transcript, YES, YES)
    cost = token_count(input_tokens=30, output_tokens=5)
    await turn_of(transcript, Says(1, 1, usage=cost), person, Limits(turn_tokens=10))

    assert person.asked == [reached("turn_tokens", 35, 10), reached("turn_tokens", 70, 40)]


async def test_tokens_of_earlier_turns_count_for_the_conversation_and_not_for_the_turn() -> None:
    transcript = begun(turn_started("0"), token_count(input_tokens=30, output_tokens=5), turn_ended())
    person = Person(transcript, YES)
    await turn_of(transcript, Says(1), person, Limits(turn_tokens=1_000_000, conversation_tokens=35))

    assert person.asked[:1] == [reached("conversation_tokens", 35, 35)]
    assert transcript.payloads[3:4] == [model_asked(1)]


async def test_uncounted_usage_is_estimated() -> None:
    transcript = begun()
    person = Person(transcript, NO)
    await turn_of(transcript, Says(1), person, Limits(turn_tokens=1))

    (estimated,) = (one.tokens for one in transcript.payloads if isinstance(one, TokensEstimated))
    assert estimated > 10
    assert person.asked == [reached("turn_tokens", estimated, 1)]


@pytest.mark.parametrize("limits", [Limits(), Limits(turn_calls=9, turn_seconds=9)])
async def test_nothing_is_estimated_where_no_limit_counts_tokens(limits: Limits) -> None:
    transcript = begun()
    await turn_of(transcript, Says(), Person(transcript), limits)

    assert transcript.payloads == [
        model_asked(1),
        agent_message("Done"),
        model_said(message("Done")),
        task_complete("Done"),
        turn_ended(),
    ]


@pytest.mark.parametrize(("now", "asked"), [(4.9, []), (5.0, [reached("turn_seconds", 5, 5)])])
async def test_time_is_up_before_the_next_request(now: float, asked: list[LimitReached]) -> None:
    transcript = begun()
    person, model = Person(transcript, NO), Says()
    await turn_of(transcript, model, person, Limits(turn_seconds=5), clock=Clock(now))

    assert (person.asked, model.asked) == (asked, 0 if asked else 1)


async def test_time_is_up_before_the_next_call_also_where_it_was_left_in_the_middle() -> None:
    transcript = RecordingTranscript(turn_started(), task_started(), user_message("go"), model_said(call("c1")))
    person, tools = Person(transcript, YES), CountingTools()
    await turn_of(transcript, Says(), person, Limits(turn_seconds=5), tools=tools, clock=Clock(12.5))

    assert person.asked == [reached("turn_seconds", 12, 5)]
    assert tools.ran == 1
