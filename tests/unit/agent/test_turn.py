"""A turn with a scripted model and clock, for behaviour that clients cannot observe or time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

import pytest

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    error,
    task_complete,
    task_started,
    token_count,
    user_message,
)
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
from kit.builders.transcript import Appended, RecordingTranscript
from kit.models.raw_provider import settings
from parley.agent.compaction import TokenMeter
from parley.agent.turn import run_turn
from parley.conversation.history import HistoryItem, UserItem
from parley.conversation.records import CallItem, TurnEnded
from parley.errors import CannotConnect, ModelError, ModelStreamBroken, UnexpectedStatus
from parley.ports.clock import Clock
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    Model,
    ModelRequest,
    RawReasoningDelta,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
    ToolSpec,
)
from parley.wire.events import BackgroundEvent, LimitReached
from parley.wire.items import InputItem, TextItem

SETTINGS = settings(project_doc_max_bytes=0)

DONE = ResponseDone(None)
DONE_TOO = (MessageDone(message("Bye")), DONE)
"""The end of a text and of its response."""


Step = Sequence[Chunk] | ModelError | Callable[[], None] | asyncio.Event


class Replies:
    """A model with scripted replies.

    A reply consists of batches, errors to raise, functions to call, and events to wait for.
    """

    def __init__(self, *replies: Sequence[Step], max_retries: int = 0) -> None:
        self.max_retries = max_retries
        self.histories: list[tuple[HistoryItem, ...]] = []
        """The history of each request, at the time of the request."""
        self.closed = 0
        self._replies = list(replies)

    def why_unsupported(self, item: InputItem) -> str | None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        self.histories.append(tuple(request.history))
        try:
            for step in self._replies.pop(0):
                if isinstance(step, ModelError):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Sequence):
                    yield step
                else:
                    step()
        finally:
            self.closed += 1


class NoTools:
    """An empty set of tools."""

    def specs(self) -> tuple[ToolSpec, ...]:
        return ()

    async def run(self, call: CallItem) -> str:
        return f"unsupported call: {call.name}"


class Pauses:
    """A clock whose sleeps return at once and are recorded."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.time = 0.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


def asked_to_go() -> RecordingTranscript:
    """Create a turn that has just begun."""
    return RecordingTranscript(turn_started(), task_started(), user_message("go"))


async def refuse_limit(reached: LimitReached) -> bool:
    raise AssertionError(f"{reached} without a limit")


async def turn_of(transcript: RecordingTranscript, model: Model, clock: Clock) -> TurnEnded:
    return await run_turn(transcript, model, NoTools(), SETTINGS, clock, TokenMeter(), refuse_limit)


def says(text: str) -> list[Sequence[Chunk]]:
    return [[TextDelta(text)], [MessageDone(message(text)), DONE]]


async def test_the_records_of_a_turn_stand_around_its_events() -> None:
    spent = token_count(input_tokens=3, output_tokens=2)
    transcript = asked_to_go()
    model = Replies(
        [
            [TextDelta("Look")],
            [MessageDone(message("Look")), CallDone(call("c1", name="look"))],
            [ResponseDone(spent)],
        ],
        says("Bye"),
    )
    await turn_of(transcript, model, Pauses())

    assert transcript.payloads == [
        agent_message("Look"),
        model_asked(1),
        model_said(message("Look")),
        model_said(call("c1", name="look")),
        response_used(spent),
        call_output("c1", "unsupported call: look"),
        spent,
        model_asked(0),
        agent_message("Bye"),
        model_said(message("Bye")),
        task_complete("Bye"),
        turn_ended(),
    ]
    assert model.closed == 2


async def test_pauses_double_and_are_spread_by_a_tenth() -> None:
    transcript, clock = asked_to_go(), Pauses()
    broken: list[Step] = [[TextDelta("par")], ModelStreamBroken("gone")]
    model = Replies(*([broken] * 5), says("whole"), max_retries=5)
    await turn_of(transcript, model, clock)

    for number, seconds in enumerate(clock.seconds):
        assert 0.18 * 2**number <= seconds <= 0.22 * 2**number
    notices = [one.message for one in transcript.payloads if isinstance(one, BackgroundEvent)]
    lost = "stream error: stream disconnected before completion: gone; retrying"
    assert notices == [
        f"{lost} {number}/5 in {_formatted_delay(seconds)}…" for number, seconds in enumerate(clock.seconds, 1)
    ]
    assert len(clock.seconds) == 5
    assert model.histories == [(UserItem((TextItem(text="go"),)),)] * 6
    assert transcript.history.items == [UserItem((TextItem(text="go"),)), message("whole")]


def _formatted_delay(seconds: float) -> str:
    return f"{round(seconds * 1000, 1):g}ms" if seconds < 1 else f"{round(seconds, 2):g}s"


@pytest.mark.promises("failures.connect")
async def test_a_turn_tries_to_connect_for_five_seconds_at_most() -> None:
    transcript, clock = asked_to_go(), Pauses()
    refused = CannotConnect("http://localhost:1/v1", "Connection refused", max_retries=100)
    await turn_of(transcript, Replies(*([[refused]] * 100), max_retries=5), clock)

    assert 2.5 < sum(clock.seconds) <= 5
    notices = [one.message for one in transcript.payloads if isinstance(one, BackgroundEvent)]
    assert notices == [
        f"stream error: {refused}; retrying {number}/100 in {_formatted_delay(seconds)}…"
        for number, seconds in enumerate(clock.seconds, 1)
    ]
    assert transcript.payloads[-1] == turn_ended("failed", str(refused), "cannot_connect")


@pytest.mark.promises("failures.connect")
async def test_an_attempt_to_connect_that_took_long_is_the_last_one() -> None:
    transcript, clock = asked_to_go(), Pauses()
    refused = CannotConnect("http://localhost:1/v1", "no answer in time", max_retries=4)
    takes_long = partial(setattr, clock, "time", 30.0)
    await turn_of(transcript, Replies([takes_long, refused], max_retries=5), clock)

    assert clock.seconds == []
    assert transcript.payloads[-1] == turn_ended("failed", str(refused), "cannot_connect")


async def test_every_request_of_a_turn_has_its_own_retries() -> None:
    transcript, clock = asked_to_go(), Pauses()
    lost: list[ModelError] = [ModelStreamBroken("gone")]
    model = Replies(
        lost, [[CallDone(call("c1")), DONE]], lost, [[CallDone(call("c2")), DONE]], lost, says("Bye"), max_retries=1
    )
    await turn_of(transcript, model, clock)

    assert transcript.payloads[-1] == turn_ended()
    assert len(clock.seconds) == 3
    assert all(seconds <= 0.22 for seconds in clock.seconds)


async def test_permanent_errors_are_not_retried() -> None:
    transcript, clock = asked_to_go(), Pauses()
    model = Replies([UnexpectedStatus(400, "Bad Request", "no")], max_retries=5)
    await turn_of(transcript, model, clock)

    expected = "unexpected status 400 Bad Request: no"
    code = "unexpected_status"
    failed = error(expected, "failed", code), task_complete(), turn_ended("failed", expected, code)
    assert transcript.payloads == [model_asked(1), *failed]
    assert clock.seconds == []


async def test_a_broken_reply_leaves_no_item() -> None:
    transcript = asked_to_go()
    broken: list[Step] = [
        [ReasoningDelta("hm"), TextDelta("par"), CallDone(call("c1")), MessageDone(message("part"))],
        ModelStreamBroken("gone"),
    ]
    await turn_of(transcript, Replies(broken, says("whole"), max_retries=1), Pauses())

    assert [one for one in transcript.payloads if not isinstance(one, BackgroundEvent)] == [
        agent_message("part"),
        model_asked(1),
        agent_message("whole"),
        model_said(message("whole")),
        task_complete("whole"),
        turn_ended(),
    ]
    assert transcript.log.open == {}
    assert transcript.history.items == [UserItem((TextItem(text="go"),)), message("whole")]


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_input_that_joins_at_any_moment_of_the_last_response_is_still_answered(at: int) -> None:
    transcript = asked_to_go()
    last: list[Step] = [*says("Bye")]
    last.insert(at, lambda: transcript.write(user_message("wait", message_id="m2")))
    model = Replies(last, says("Well?"))
    await turn_of(transcript, model, Pauses())

    go, wait = UserItem((TextItem(text="go"),)), UserItem((TextItem(text="wait"),))
    assert model.histories == [(go,), (go, message("Bye"), wait)]
    assert transcript.payloads[-2:] == [task_complete("Well?"), turn_ended()]
    assert transcript.history.waiting == []


async def test_text_without_a_final_item_is_shown_and_stored_once() -> None:
    transcript = asked_to_go()
    await turn_of(transcript, Replies([[TextDelta("Hel"), TextDelta("lo")], [DONE]]), Pauses())

    assert transcript.payloads == [
        model_asked(1),
        agent_message("Hello"),
        model_said(message("Hello")),
        task_complete("Hello"),
        turn_ended(),
    ]


async def test_raw_thoughts_that_are_not_wanted_open_nothing() -> None:
    transcript = asked_to_go()
    thinks: list[Step] = [[RawReasoningDelta("psst")], [ReasoningDone(summaries=(), raw=("psst",)), DONE]]
    await turn_of(transcript, Replies(thinks), Pauses())

    assert transcript.payloads == [model_asked(1), task_complete(), turn_ended("done")]
    assert transcript.log.open == {}


async def test_cancelling_closes_the_reply_and_writes_nothing() -> None:
    transcript, reached = asked_to_go(), asyncio.Event()
    held: list[Step] = [[TextDelta("par")], reached.set, asyncio.Event()]
    model = Replies(held, max_retries=5)
    turn = asyncio.create_task(turn_of(transcript, model, Pauses()))
    async with asyncio.timeout(90):
        await reached.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn

    assert transcript.payloads == []
    assert model.closed == 1


async def test_shown_text_without_a_final_item_is_complete_at_the_end_of_the_response() -> None:
    transcript = asked_to_go()
    careless: list[Step] = [
        [ReasoningDelta("hm"), TextDelta("I "), TextDelta("look."), CallDone(call("c1")), DONE],
    ]
    await turn_of(transcript, Replies(careless, says("Done")), Pauses())

    assert transcript.payloads == [
        model_asked(1),
        agent_reasoning("hm"),
        agent_message("I look."),
        model_said(message("I look.")),
        model_said(call("c1")),
        call_output("c1", "unsupported call: shell"),
        model_asked(0),
        agent_message("Done"),
        model_said(message("Done")),
        task_complete("Done"),
        turn_ended(),
    ]


# --- entries in one append -----------------------------------------------------------------------


async def test_the_last_text_is_stored_with_the_end_of_the_response_in_one_append() -> None:
    transcript = asked_to_go()
    model = Replies(
        [[ReasoningDelta("hm")], [ReasoningDone(summaries=("hm",), raw=()), TextDelta("Bye"), *DONE_TOO]]
    )
    await turn_of(transcript, model, Pauses())

    assert [entry.payloads for entry in transcript.did if isinstance(entry, Appended)] == [
        (agent_reasoning("hm"),),
        (model_asked(1), agent_message("Bye"), model_said(message("Bye")), task_complete("Bye"), turn_ended()),
    ]


async def test_a_text_is_shown_whole_before_the_response_ends_if_that_takes_longer() -> None:
    transcript, reached, go_on = asked_to_go(), asyncio.Event(), asyncio.Event()
    model = Replies([[TextDelta("Bye"), MessageDone(message("Bye"))], reached.set, go_on, [DONE]])
    turn = asyncio.create_task(turn_of(transcript, model, Pauses()))
    async with asyncio.timeout(90):
        await reached.wait()
        before = transcript.payloads
        go_on.set()
        await turn

    assert before == [agent_message("Bye")]


async def test_texts_that_end_with_the_response_are_each_said_once() -> None:
    transcript = asked_to_go()
    ends: list[Chunk] = [MessageDone(message("")), MessageDone(message("Two")), MessageDone(message("")), DONE]
    await turn_of(transcript, Replies([[TextDelta("One"), *ends]]), Pauses())

    assert transcript.payloads == [
        model_asked(1),
        agent_message("One"),
        agent_message("Two"),
        model_said(message("One")),
        model_said(message("Two")),
        task_complete("Two"),
        turn_ended(),
    ]


async def test_input_that_joins_while_the_end_of_the_body_is_waited_for_comes_after_the_response() -> None:
    transcript = asked_to_go()
    joins = partial(transcript.write, user_message("wait", message_id="m2"))
    model = Replies([[TextDelta("Bye"), *DONE_TOO], joins], says("Well?"))
    await turn_of(transcript, model, Pauses())

    go, wait = UserItem((TextItem(text="go"),)), UserItem((TextItem(text="wait"),))
    assert model.histories == [(go,), (go, message("Bye"), wait)]
    assert transcript.payloads[:4] == [
        user_message("wait", message_id="m2"),
        model_asked(1),
        agent_message("Bye"),
        model_said(message("Bye")),
    ]


async def test_a_reply_that_breaks_off_after_its_end_is_repeated_and_said_once() -> None:
    transcript = asked_to_go()
    broken: list[Step] = [[TextDelta("Bye"), *DONE_TOO], ModelStreamBroken("gone")]
    await turn_of(transcript, Replies(broken, says("Bye"), max_retries=1), Pauses())

    assert transcript.payloads.count(agent_message("Bye")) == 1
    assert transcript.history.items == [UserItem((TextItem(text="go"),)), message("Bye")]
