"""A model response that is truncated at any byte is requested again, and no part of it remains in the history."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    background_event,
    task_complete,
    task_started,
    token_count,
)
from kit.clients.messages import APIS
from parley.client import Conversation, Event, Stream
from parley.testing import (
    HOLD,
    Call,
    Cut,
    Data,
    ParleyProcess,
    Reasoning,
    RecordedRequest,
    Reply,
    Says,
    ScriptedModel,
)
from parley.testing.render import Api, render, writer_for
from parley.testing.replies import Ending
from parley.testing.steps import Step
from parley.wire.events import AgentMessageDelta, AgentReasoningDelta, BackgroundEvent
from parley.wire.mcp import PLAIN_VERSION

pytestmark = pytest.mark.usefixtures("servers_in_process")

AT_ONCE: Final = 120
"""The number of conversations whose responses break off at the same time, each at a different byte."""

THOUGHT: Final = "Grüße?"
PIECES: Final = ("Good ", "mörn", "ing \U0001f600")
ANSWER: Final[tuple[Step, ...]] = (Reasoning(THOUGHT), *PIECES, Call("greet", {"who": "é"}, call_id="c1"))
"""A response with every kind of content. Because of the call, the model is asked again."""
LAST_WORD: Final = "Done"

BROKEN: Final = (
    "stream error: stream disconnected before completion: the response broke off; retrying 1/1 in <delay>…"
)
DELAY: Final = re.compile(r"(?<=retrying 1/1 in )(\d+(?:\.\d)?)ms(?=…$)")


class Part(NamedTuple):
    """One server-sent event of the response, and the events that a client sees because of it."""

    data: bytes
    shown: tuple[Event, ...] = ()
    ends: bool = False
    """True if the response is complete with this part, so that the rest of the body does not matter."""


def parts_of(api: Api) -> list[Part]:
    rendered = [part for part in render(writer_for(api), ANSWER) if isinstance(part, bytes)]
    said = [(AgentMessageDelta(delta=piece),) for piece in PIECES]
    if api == "chat":
        thought, *texts, call, finish, mark = rendered
        spoken = [Part(text, shown) for text, shown in zip(texts, said, strict=True)]
        return [Part(thought), *spoken, Part(call), Part(finish, ends=True), Part(mark)]
    begin, thinking, thought, *texts, text, call, completed = rendered
    return [
        Part(begin),
        Part(b'data: {"type":"response.in_progress"}\n\n'),
        Part(thinking, (AgentReasoningDelta(delta=THOUGHT),)),
        Part(thought, (agent_reasoning(THOUGHT),)),
        *(Part(data, shown) for data, shown in zip(texts, said, strict=True)),
        Part(text, (agent_message("".join(PIECES)),)),
        Part(call),
        Part(completed, ends=True),
    ]


def cut_after(api: Api, at: int, how: Ending) -> Cut:
    """Return a response that breaks off at `at`, after the test has seen everything before it."""
    parts = parts_of(api)[1:] if api == "responses" else parts_of(api)  # the model sends the beginning itself
    text = b"".join(part.data for part in parts).decode().removeprefix("data: ").removesuffix("\n\n")
    return Cut(steps=(Data(text), HOLD), at=at, how=how)


def shown_after(api: Api, at: int) -> tuple[list[Event], bool]:
    """Return what a client sees of the first `at` bytes, and whether the response is complete by then."""
    shown: list[Event] = [task_started()]
    for part in parts_of(api):
        at -= len(part.data)
        if at < 0:
            break
        shown += part.shown
        if part.ends:
            return shown, True
    return shown, False


def whole_answer(api: Api) -> list[Event]:
    """Return the events of a complete response, and of the response that follows its call."""
    cost: list[Event] = [token_count(input_tokens=10, output_tokens=5, cached=0, reasoning=0)]
    if api == "chat":
        cost = []  # the request did not ask for token counts
    seen = [event for part in parts_of(api) for event in part.shown]
    text = [agent_message("".join(PIECES))] if api == "chat" else []  # the API marks the end of the text
    last: list[Event] = [
        AgentMessageDelta(delta=LAST_WORD),
        agent_message(LAST_WORD),
        *cost,
        task_complete(LAST_WORD),
    ]
    return [*seen, *text, *cost, *last]


def without_delay(event: Event) -> Event:
    """Replace the delay in a retry notice by `<delay>`, after checking that it is near the usual one."""
    if not isinstance(event, BackgroundEvent):
        return event
    found = DELAY.search(event.message)
    assert found is not None, event
    assert 180 <= float(found[1]) <= 220, event
    return background_event(DELAY.sub("<delay>", event.message))


# --- the model ---------------------------------------------------------------------------


def history_in(request: RecordedRequest) -> list[Any]:
    assert isinstance(request.body, dict)
    return list(request.body["messages"] if request.api == "chat" else request.body["input"])


def said_in(request: RecordedRequest) -> list[str | None]:
    """Return the messages of the user without the environment, and None for all other items."""
    if request.api == "chat":
        return [item["content"] if item["role"] == "user" else None for item in history_in(request)[2:]]
    return [item["content"][0]["text"] if item.get("role") == "user" else None for item in history_in(request)[1:]]


class Breaking:
    """A model whose first response to `cut AT` breaks off."""

    def __init__(self, api: Api, how: Ending) -> None:
        self._api, self._how = api, how
        self.sent: dict[str, list[list[Any]]] = {}
        """The histories of all requests, keyed by the first message of the conversation."""

    def reply(self, request: RecordedRequest) -> Reply:
        question, *rest = said_in(request)
        assert question is not None
        asked = self.sent.setdefault(question, [])
        asked.append(history_in(request))
        if rest:
            return Says((LAST_WORD,))
        if question.startswith("cut ") and len(asked) == 1:
            return cut_after(self._api, int(question.removeprefix("cut ")), self._how)
        return Says(ANSWER)


# --- the test ----------------------------------------------------------------------------


async def seen_of(stream: Stream, number: int) -> list[Event]:
    return [await anext(stream) for _ in range(number)]


def batches(api: Api) -> Iterator[tuple[range, bool]]:
    """Yield groups of all positions to cut at, with whether the response is complete by then."""
    size = sum(len(part.data) for part in parts_of(api))
    enough_from = next(at for at in range(size + 1) if shown_after(api, at)[1])
    for begin, end, enough in ((0, enough_from, False), (enough_from, size + 1, True)):
        for first in range(begin, end, AT_ONCE):
            yield range(first, min(first + AT_ONCE, end)), enough


async def cut_at_once(
    parley: ParleyProcess, api: Api, places: range, *, enough: bool
) -> list[tuple[list[Event], list[Event]]]:
    """Make the responses break off at these positions.

    Return the events of each conversation before and after the break.
    """
    conversations = [await parley.create() for _ in places]
    streams = [await conversation.stream() for conversation in conversations]
    expected = [shown_after(api, at)[0] for at in places]
    async with asyncio.timeout(90):
        for conversation, at in zip(conversations, places, strict=True):
            await conversation.send(f"cut {at}")
        before = [await seen_of(stream, len(seen)) for stream, seen in zip(streams, expected, strict=True)]
        if not enough:  # otherwise the server does not wait for the rest
            await parley.model.wait_until_held(len(places))
            parley.model.release()
        later = [await stream.turn() for stream in streams]
        await asyncio.gather(*map(_ask_again, conversations, streams))
        await asyncio.gather(*(stream.close() for stream in streams))
    return list(zip(before, later, strict=True))


async def _ask_again(conversation: Conversation, stream: Stream) -> None:
    """Run one more turn, to record its request."""
    await conversation.send("and then?")
    assert await stream.text() == LAST_WORD


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_an_answer_cut_after_any_byte_is_shown_once_and_whole(
    parley_model: ScriptedModel, api: Api, how: Ending
) -> None:
    model = Breaking(api, how)
    parley_model.set_handler(model.reply)
    cuts = retried = 0
    async with ParleyProcess(parley_model, protocol_version=PLAIN_VERSION, api=api, stream_max_retries=1) as parley:
        uncut = await parley.create()
        async with asyncio.timeout(90), uncut.stream() as stream:
            await uncut.send("whole")
            assert await stream.turn() == [task_started(), *whole_answer(api)]
            await _ask_again(uncut, stream)
        for places, enough in batches(api):
            seen = await cut_at_once(parley, api, places, enough=enough)
            for at, (before, later) in zip(places, seen, strict=True):
                assert before == shown_after(api, at)[0], at
                if enough:
                    assert [*before, *later] == [task_started(), *whole_answer(api)], at
                else:
                    again = [background_event(BROKEN), *whole_answer(api)]
                    assert [without_delay(event) for event in later] == again, at
            cuts += len(places)
            retried += 0 if enough else len(places)

    uncut_sent = model.sent.pop("whole")
    for question, sent in model.sent.items():
        same = [renamed(history, "whole", question) for history in uncut_sent]
        _, enough = shown_after(api, int(question.removeprefix("cut ")))
        assert sent == (same if enough else [same[0], *same]), question
    requests = sum(map(len, model.sent.values()))
    print(f"{api}, {how}: {cuts} cuts, {retried} asked again, {requests} requests")


def renamed(value: Any, old: str, new: str) -> Any:
    """Return the history of another conversation with a different first message."""
    if isinstance(value, dict):
        return {key: renamed(one, old, new) for key, one in value.items()}
    if isinstance(value, list):
        return [renamed(one, old, new) for one in value]
    return new if value == old else value
