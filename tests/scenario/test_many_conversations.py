"""Many concurrent conversations on one connection."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import pytest

from kit.clients.messages import (
    EITHER_API,
    TASK_STARTED,
    answered,
    delta,
    error,
    initial_state,
    live,
    remains,
    spoken,
)
from kit.clients.wire_client import speaking
from parley.testing import HOLD, Failure, RecordedRequest, Reply, Says, ScriptedModel
from parley.testing.render import Api
from parley.wire.jsonrpc import encode

either_api = pytest.mark.parametrize("api", EITHER_API)

CONVERSATIONS: Final = 50


def pieces(question: str) -> list[str]:
    """Return the reply to a message, in pieces that are unique."""
    return [f"<{question}/{number}>" for number in range(12)]


def question_in(request: RecordedRequest) -> str:
    """Return the last message of the user."""
    if request.api == "chat":
        return str(request.body["messages"][-1]["content"])
    return str(request.body["input"][-1]["content"][0]["text"])


def answer_slowly(request: RecordedRequest) -> Reply:
    """Reply with the pieces, and hold in the middle until all clients are connected."""
    said = pieces(question_in(request))
    return Says((*said[:6], HOLD, *said[6:]))


def by_conversation(messages: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for message in messages:
        found[message["params"]["_meta"]["conversationId"]].append(message)
    return dict(found)


@pytest.mark.promises("stream.conversation-id")
@either_api
async def test_fifty_conversations_at_once_are_never_mixed(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.set_handler(answer_slowly)
        conversations = [await client.create() for _ in range(CONVERSATIONS)]
        with client.at_once():
            for conversation in conversations:
                client.stream(conversation)
        await client.take(2 * CONVERSATIONS)
        shown: dict[str, list[Any]] = {conversation: [] for conversation in conversations}
        for turn in ("first", "second"):
            with client.at_once():
                sent = {client.message(one, f"{turn} {one}"): one for one in conversations}
            await parley_model.wait_until_held(CONVERSATIONS)
            parley_model.release()
            messages: list[Any] = []
            ended = 0
            while ended < CONVERSATIONS:
                messages += await client.until_method("task_complete")
                ended += 1

            answers = [message for message in messages if "id" in message]
            assert sorted(answers, key=lambda answer: int(answer["id"])) == [
                answered(request, {"status": "ok"}) for request in sent
            ]
            for conversation, its in by_conversation([one for one in messages if "method" in one]).items():
                shown[conversation] += its

        assert shown == {
            one: [
                live(event, of=one)
                for turn in ("first", "second")
                for event in spoken(api, *pieces(f"{turn} {one}"))
            ]
            for one in conversations
        }
        for request in parley_model.requests[CONVERSATIONS:]:
            (asking,) = [one for one in conversations if one in question_in(request)]
            others = [one for one in conversations if one != asking and one.encode() in encode(request.body)]
            assert others == []


async def test_snapshots_of_fifty_conversations_in_mid_sentence_are_each_ones_own(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        parley_model.set_handler(answer_slowly)
        conversations = [await client.create() for _ in range(CONVERSATIONS)]
        with client.at_once():
            for one in conversations:
                client.stream(one)
        await client.take(2 * CONVERSATIONS)
        with client.at_once():
            for one in conversations:
                client.message(one, f"first {one}")
        await client.take(CONVERSATIONS * (1 + 1 + 6))  # the answer, the first events, and half of the pieces
        with client.at_once():
            again = {client.stream(one): one for one in conversations}
        joined = await client.take(3 * CONVERSATIONS)
        parley_model.release()
        rest = await client.take(CONVERSATIONS * (6 + 2))

        assert [message for message in joined if "id" in message] == [answered(request, {}) for request in again]
        snapshots = [one for one in joined if one.get("method") == "notifications/initial_state"]
        assert snapshots == [
            initial_state(one, TASK_STARTED, delta("".join(pieces(f"first {one}")[:6]))) for one in conversations
        ]
        assert by_conversation(rest) == {
            one: [live(event, of=one) for event in spoken("chat", *pieces(f"first {one}"))[7:]]
            for one in conversations
        }


async def test_conversations_that_fail_leave_the_others_alone(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:

        def fail_every_other(request: RecordedRequest) -> Reply:
            question = question_in(request)
            return Says(("fine",)) if "good" in question else Failure(status=400, body=question)

        parley_model.set_handler(fail_every_other)
        conversations = [await client.create() for _ in range(20)]
        questions = {one: f"{'good' if number % 2 else 'bad'} {number}" for number, one in enumerate(conversations)}
        with client.at_once():
            for one, question in questions.items():
                client.message(one, question)
        await client.take(20)
        for one in conversations:
            await client.over(one)
        snapshots = []
        for one in conversations:
            stream, snapshot = await client.open_stream(one)
            client.cancel(stream)
            snapshots.append(snapshot)

        def left_by(question: str) -> list[Any]:
            if "good" in question:
                return remains("chat", "fine")
            failure = error(f"unexpected status 400 Bad Request: {question}")
            return [TASK_STARTED, failure, {"type": "task_complete", "last_agent_message": None}]

        assert snapshots == [initial_state(one, *left_by(question)) for one, question in questions.items()]


@pytest.mark.promises("framing.never-blocked")
async def test_a_ping_is_answered_at_once_while_fifty_turns_run(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.set_handler(lambda request: Says((HOLD, "Done")))
        conversations = [await client.create() for _ in range(CONVERSATIONS)]
        with client.at_once():
            for one in conversations:
                client.message(one, "go")
        await client.take(CONVERSATIONS)
        await parley_model.wait_until_held(CONVERSATIONS)

        assert await client.meanwhile() == []
