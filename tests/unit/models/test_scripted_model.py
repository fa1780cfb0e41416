"""The embedded provider: the chunks for a script."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from kit.models.raw_provider import CONVERSATION, RecordingClock, everything, settings
from parley.conversation.records import CallItem, MessageItem
from parley.errors import ModelStreamBroken
from parley.models import MAX_RECORDED, model_opener
from parley.models.errors import BadScript
from parley.models.http import Http
from parley.models.recording import read_recording
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    Model,
    OpenModel,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
)
from parley.wire.events import TokenCount
from parley.wire.ids import CallId, ConversationId

OTHER = ConversationId("b1f7a5d2-6f0e-4f43-8a57-9c0d2f1e7a44")


@pytest.fixture
def clock() -> RecordingClock:
    return RecordingClock()


@pytest.fixture
def opener(clock: RecordingClock) -> OpenModel:
    return model_opener(http=Http(), clock=clock)


def written(path: Path, script: object) -> str:
    file = path / "script.json"
    file.write_bytes(script if isinstance(script, bytes) else msgspec.json.encode(script))
    return str(file)


def opened(opener: OpenModel, script: str | None, conversation: ConversationId = CONVERSATION) -> Model:
    return opener(settings("scripted", script=script), conversation)


def said(text: str) -> list[Chunk]:
    return [TextDelta(text), MessageDone(MessageItem(text=text)), ResponseDone(None)]


async def test_a_reply_is_played_step_by_step(opener: OpenModel, clock: RecordingClock, tmp_path: Path) -> None:
    script = written(
        tmp_path,
        {
            "delta_delay_ms": 20,
            "replies": [
                [
                    {"reasoning": "Let me see."},
                    {"text": "I will\n"},
                    {"delay_ms": 500},
                    {"text": "look. "},
                    {"call": {"name": "shell", "arguments": {"command": ["ls"]}, "call_id": "c1"}},
                    {"call": {"name": "shell", "arguments": "{not json", "call_id": "c2"}},
                    {"text": "Bye"},
                    {"usage": {"input_tokens": 3, "output_tokens": 2, "cached_input_tokens": 1}},
                ]
            ],
        },
    )

    chunks = await everything(opened(opener, script))

    assert chunks == [
        ReasoningDelta("Let"),
        ReasoningDelta(" me"),
        ReasoningDelta(" see."),
        ReasoningDone(summaries=("Let me see.",), raw=()),
        TextDelta("I"),
        TextDelta(" will"),
        TextDelta("\n"),
        TextDelta("look."),
        TextDelta(" "),
        MessageDone(MessageItem(text="I will\nlook. ")),
        CallDone(CallItem(call_id=CallId("c1"), name="shell", arguments='{"command":["ls"]}')),
        CallDone(CallItem(call_id=CallId("c2"), name="shell", arguments="{not json")),
        TextDelta("Bye"),
        MessageDone(MessageItem(text="Bye")),
        ResponseDone(
            TokenCount(
                input_tokens=3,
                cached_input_tokens=1,
                output_tokens=2,
                reasoning_output_tokens=None,
                total_tokens=5,
            )
        ),
    ]
    assert clock.slept == [0.02] * 6 + [0.5] + [0.02] * 3


async def test_replies_come_in_turn_for_each_conversation(opener: OpenModel, tmp_path: Path) -> None:
    script = written(tmp_path, {"replies": [[{"text": "one"}], [{"text": "two"}]]})
    model = opened(opener, script)

    assert await everything(model) == said("one")
    assert await everything(opened(opener, script, OTHER)) == said("one")
    assert await everything(model) == said("two")
    assert await everything(opened(opener, script)) == said("one")


async def test_a_reply_can_fail_and_the_next_request_gets_the_next_one(opener: OpenModel, tmp_path: Path) -> None:
    model = opened(
        opener, written(tmp_path, {"replies": [[{"text": "par"}, {"fail": "gone"}], [{"text": "whole"}]]})
    )

    with pytest.raises(ModelStreamBroken) as broken:
        await everything(model)

    assert broken.value.detail == "gone"
    assert await everything(model) == said("whole")


async def test_the_explanation_of_a_refusal_gets_the_form_of_a_provider(opener: OpenModel, tmp_path: Path) -> None:
    texts = ("Not this.", " (cyber): Not this.", ": Not this.", "")
    model = opened(opener, written(tmp_path, {"replies": [[{"refused": text}] for text in texts]}))

    refusals = [(await everything(model))[-1] for _ in texts]

    forms = (": Not this.", " (cyber): Not this.", ": Not this.", "")
    assert refusals == [ResponseDone(None, refused=form) for form in forms]


async def test_a_call_without_an_id_is_given_one(opener: OpenModel, tmp_path: Path) -> None:
    model = opened(opener, written(tmp_path, {"replies": [[{"call": {"name": "update_plan"}}]]}))

    first, _ = await everything(model)
    second, _ = await everything(model)

    assert isinstance(first, CallDone)
    assert isinstance(second, CallDone)
    assert first.item.arguments == "{}"
    assert first.item.call_id != second.item.call_id


async def test_an_empty_reply_is_a_response(opener: OpenModel, tmp_path: Path) -> None:
    assert await everything(opened(opener, written(tmp_path, {"replies": [[]]}))) == [ResponseDone(None)]


async def test_the_demonstration_streams_words_and_thoughts(opener: OpenModel, clock: RecordingClock) -> None:
    model = opened(opener, None)
    chunks = [chunk for _ in range(3) for chunk in await everything(model)]

    assert sum(isinstance(chunk, TextDelta) for chunk in chunks) > 100
    assert any(isinstance(chunk, ReasoningDone) for chunk in chunks)
    assert clock.slept


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        (b"{", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        ({"replies": []}, "Expected `array` of length >= 1 - at `$.replies`"),
        ({"replies": [[{"text": 7}]]}, "Expected `str`, got `int` - at `$.replies[0][0].text`"),
        ({"replies": [[{"txt": "x"}]]}, "Object contains unknown field `txt` - at `$.replies[0][0]`"),
        (
            {"replies": [[], [{"text": "x"}, {"text": "x", "fail": "y"}]]},
            "Expected exactly one field in a step, got text and fail - at `$.replies[1][1]`",
        ),
        ({"replies": [[{}]]}, "Expected exactly one field in a step, got nothing - at `$.replies[0][0]`"),
    ],
)
async def test_an_invalid_script_is_reported_at_the_first_request(
    opener: OpenModel, tmp_path: Path, script: object, detail: str
) -> None:
    path = written(tmp_path, script)
    model = opened(opener, path)

    with pytest.raises(BadScript) as bad:
        await everything(model)

    assert str(bad.value) == f"script {path}: {detail}"
    assert not bad.value.worth_repeating


async def test_the_script_in_the_docs_can_be_played(opener: OpenModel, tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "scripted.md"
    shown = page.read_text().partition("```json\n")[2].partition("```")[0]
    model = opened(opener, written(tmp_path, shown.encode()))

    first, second = await everything(model), await everything(model)

    assert any(isinstance(chunk, CallDone) for chunk in first)
    assert isinstance(second[-1], ResponseDone)
    with pytest.raises(ModelStreamBroken):
        await everything(model)


async def test_a_missing_script_is_named_in_the_error(opener: OpenModel, tmp_path: Path) -> None:
    path = str(tmp_path / "missing.json")

    with pytest.raises(BadScript) as bad:
        await everything(opened(opener, path))

    assert str(bad.value) == f"script {path}: No such file or directory"


async def test_the_recorder_forgets_the_conversations_that_were_used_the_longest_time_ago(
    opener: OpenModel, tmp_path: Path
) -> None:
    script = written(tmp_path, {"replies": [[{"text": "one"}], [{"text": "two"}], [{"text": "three"}]]})
    record = str(tmp_path / "recording.jsonl")
    recorded = settings("scripted", script=script, record=record)

    for others in (0, MAX_RECORDED - 1, MAX_RECORDED):
        for number in range(others):
            opener(recorded, ConversationId(f"other {number}"))
        await everything(opener(recorded, CONVERSATION))

    assert [exchange.request.instructions is UNSET for exchange in read_recording(record)] == [False, True, False]
