"""Messages with an earlier message as their parent: the history that the model gets, and the refusals."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kit.clients.codex_calls import AskedFor, Assistant, CallSent, Output, User, body
from kit.clients.messages import (
    EITHER_API,
    TASK_STARTED,
    agent_message,
    answered,
    error,
    failed,
    task_complete,
    user_message,
    without_code,
)
from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, Call, ScriptedModel
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

either_api = pytest.mark.parametrize("api", EITHER_API)

M1, M2, M3, M4, M5, UNKNOWN = (str(UUID(int=number)) for number in range(1, 7))


def bodies(model: ScriptedModel) -> list[Any]:
    return [request.body for request in model.requests]


async def say(
    client: WireClient, conversation: str, words: str, message_id: str | None = None, **more: Any
) -> None:
    """Send a message and wait for the end of its turn."""
    given = {} if message_id is None else {"message_id": message_id}
    await client.say(conversation, words, **given, **more)
    await client.over(conversation)


async def read(client: WireClient, conversation: str) -> list[Any]:
    """Return every event of a conversation."""
    page = await client.value_of(client.call("conversationRead", conversation_id=conversation, limit=1000))
    return [one["msg"] for one in page["events"]]


async def is_refused(client: WireClient, conversation: str, *, error_text: str, **more: Any) -> None:
    """Check that a message is refused with this text and has no effect."""
    before = await read(client, conversation)
    request = client.message(conversation, "never", **more)
    assert without_code(await client.read()) == failed(request, error_text)
    assert await read(client, conversation) == before


# --- the history of the model --------------------------------------------------------------


@either_api
async def test_the_model_sees_everything_up_to_the_parents_turn_and_nothing_after_it(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, version=FULL_VERSION) as client:
        conversation = await client.create()
        parley_model.says("Looking.", Call("look", "{}", "c1"))
        parley_model.says("One.")
        for words in ("Two.", "Three.", "Four.", "Five.", "Six.", "Seven."):
            parley_model.says(words)
        await say(client, conversation, "one", M1)
        await say(client, conversation, "two", M2)
        await say(client, conversation, "three", M3, parent_message_id=M1)
        await say(client, conversation, "four", M4)  # goes on with the newest
        await say(client, conversation, "five", M5, parent_message_id=M2)  # back to what was left
        await say(client, conversation, "six", parent_message_id=conversation)  # before the first
        await say(client, conversation, "seven", parent_message_id=M4)

        looked = (
            User("one"),
            Assistant("Looking."),
            CallSent("c1", "look", "{}", "fc_2"),
            Output("c1", "unsupported call: look"),
        )
        one = (*looked, Assistant("One."))
        three = (*one, User("three"), Assistant("Three."))
        expected: list[tuple[AskedFor, ...]] = [
            (User("one"),),
            looked,
            (*one, User("two")),
            (*one, User("three")),
            (*three, User("four")),
            (*one, User("two"), Assistant("Two."), User("five")),
            (User("six"),),
            (*three, User("four"), Assistant("Four."), User("seven")),
        ]
        assert bodies(parley_model) == [
            body(api, *items, cwd=client.work, session=conversation) for items in expected
        ]


async def test_all_branches_stay_in_the_log_and_say_where_they_begin(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await say(client, conversation, "one", M1)
        await say(client, conversation, "two", M2)
        request = client.message(conversation, "three", message_id=M3, parent_message_id=M1)
        accepted = await client.read()
        await client.over(conversation)
        await say(client, conversation, "four", M4, parent_message_id=conversation)

        def turn(words: str, message_id: str, **parent: str) -> list[Any]:
            said = {**user_message(words, message_id), **parent}
            return [TASK_STARTED, said, agent_message("Done"), task_complete("Done")]

        assert accepted == answered(request, {"status": "ok", "message_id": M3})
        assert await read(client, conversation) == [
            *turn("one", M1),
            *turn("two", M2),
            *turn("three", M3, parent_message_id=M1),
            *turn("four", M4, parent_message_id=conversation),
        ]


@either_api
async def test_a_branch_may_begin_after_a_turn_that_failed_was_interrupted_or_was_joined(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, version=FULL_VERSION) as client:
        conversation = await client.create()
        parley_model.fails(400, body="no")
        await say(client, conversation, "fails", M1)

        parley_model.says("Looking.", Call("shell", {"command": ["sleep", "60"]}, "c1"))
        stream, _ = await client.open_stream(conversation)
        await client.say(conversation, "is interrupted", message_id=M2)
        await client.until_method("exec_command_begin")
        stop = client.call("conversationInterrupt", conversation_id=conversation)
        messages = await client.until_method("error")
        if answered(stop, {"status": "ok"}) not in messages:
            await client.read()
        client.cancel(stream)
        await client.meanwhile()

        parley_model.says("Well,", HOLD)
        parley_model.says("well.")
        await client.say(conversation, "is joined", message_id=M3, parent_message_id=M1)
        await parley_model.wait_until_held()
        await client.say(conversation, "by this", message_id=M4)
        parley_model.release()
        await client.over(conversation)

        parley_model.requests.clear()
        for parent in (M1, M2, M3, M4):
            await say(client, conversation, "and?", parent_message_id=parent)

        fails = User("fails")
        cut = (
            User("is interrupted"),
            Assistant("Looking."),
            CallSent("c1", "shell", '{"command":["sleep","60"]}', "fc_2"),
            Output("c1", "aborted"),
        )
        joined = (User("is joined"), Assistant("Well,"), User("by this"), Assistant("well."))
        assert bodies(parley_model) == [
            body(api, *items, User("and?"), cwd=client.work, session=conversation)
            for items in ((fails,), (fails, *cut), (fails, *joined), (fails, *joined))
        ]


async def test_a_message_after_an_interrupt_may_be_a_branch(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await say(client, conversation, "one", M1)
        parley_model.says("Two", HOLD)
        await client.say(conversation, "two")
        await parley_model.wait_until_held()
        with client.at_once():
            stop = client.call("conversationInterrupt", conversation_id=conversation)
            again = client.message(conversation, "instead", message_id=M2, parent_message_id=M1)
        both = await client.take(2)
        await client.over(conversation)

        assert both == [
            answered(stop, {"status": "ok"}),
            answered(again, {"status": "ok", "message_id": M2}),
        ]
        interrupted = {**error(" Turn interrupted"), "reason": "interrupted", "principal": "local"}
        assert interrupted in await read(client, conversation)
        assert bodies(parley_model)[-1] == body(
            "chat", User("one"), Assistant("Done"), User("instead"), cwd=client.work, session=conversation
        )


async def test_a_session_of_the_codex_tool_can_be_branched_too(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        request = client.call("codex", prompt="one", cwd=str(client.work))
        answer = (await client.until_answer(request))[-1]
        session = answer["result"]["structuredContent"]["sessionId"]
        (_, said, *_) = await read(client, session)
        await say(client, session, "two")
        await say(client, session, "three", parent_message_id=said["message_id"])

        assert bodies(parley_model)[-1] == body(
            "chat", User("one"), Assistant("Done"), User("three"), cwd=client.work, session=session
        )


# --- settings --------------------------------------------------------------------------


async def test_the_settings_of_a_branch_are_those_in_force_at_its_parent(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()

        async def asked(words: str, message_id: str | None = None, **more: Any) -> tuple[str, str]:
            """Return the model of the last request, and the model in the status of the conversation."""
            await say(client, conversation, words, message_id, **more)
            status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))
            return str(parley_model.requests[-1].body["model"]), status["model"]

        def both(model: str) -> tuple[str, str]:
            return model, model

        assert await asked("one", M1) == both(MODEL)
        assert await asked("two", M2, model="second") == both("second")
        assert await asked("three", M3, config={"model": "third"}) == both("third")
        assert await asked("from two", parent_message_id=M2) == both("second")
        assert await asked("goes on") == both("second")
        assert await asked("from one", M4, parent_message_id=M1, cwd="/elsewhere") == both(MODEL)
        assert await asked("from three", parent_message_id=M3) == both("third")
        assert await asked("from the beginning", parent_message_id=conversation) == both(MODEL)
        assert await asked("from one again", parent_message_id=M4, model="new") == both("new")
        there = "Current working directory: /elsewhere\n"
        assert there in parley_model.requests[-1].body["messages"][1]["content"]
        assert there not in parley_model.requests[-2].body["messages"][1]["content"]


async def test_settings_that_joined_a_turn_are_in_force_after_the_message_that_brought_them(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        parley_model.says("One.", HOLD)
        await client.say(conversation, "one", message_id=M1)
        await parley_model.wait_until_held()
        await client.say(conversation, "joined", message_id=M2, model="second")
        parley_model.release()
        await client.over(conversation)
        await say(client, conversation, "from the first", parent_message_id=M1)
        await say(client, conversation, "from the second", parent_message_id=M2)

        assert [request.body["model"] for request in parley_model.requests] == [MODEL, MODEL, MODEL, "second"]


# --- refusals --------------------------------------------------------------------------


async def test_no_branch_begins_while_a_turn_runs(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await say(client, conversation, "one", M1)
        parley_model.says("Two.", HOLD)
        await client.say(conversation, "two", message_id=M2)
        await parley_model.wait_until_held()
        for parent in (M1, M2, conversation, UNKNOWN):
            await is_refused(
                client,
                conversation,
                message_id=M3,
                parent_message_id=parent,
                model="never",
                error_text="A turn is running",
            )
        parley_model.release()
        await client.over(conversation)
        # the refused message has not used the id
        await say(client, conversation, "three", M3, parent_message_id=M1)

        assert [request.body["model"] for request in parley_model.requests] == [MODEL] * 3
        assert bodies(parley_model)[-1] == body(
            "chat", User("one"), Assistant("Done"), User("three"), cwd=client.work, session=conversation
        )


@pytest.mark.parametrize("version", [FULL_VERSION, PLAIN_VERSION])
async def test_a_parent_that_does_not_exist_is_refused(parley_model: ScriptedModel, version: str) -> None:
    async with speaking(parley_model, version=version) as client:
        conversation, other = await client.create(), await client.create()
        await say(client, other, "elsewhere", M2)
        await say(client, conversation, "one", M1)
        for parent in (UNKNOWN, M2, other, M3):
            await is_refused(
                client,
                conversation,
                message_id=M3,
                parent_message_id=parent,
                error_text="Parent message does not exist",
            )
        if version == FULL_VERSION:
            await is_refused(
                client, conversation, parent_message_id=UNKNOWN, error_text="Parent message does not exist"
            )
        await say(client, conversation, "three", M3, parent_message_id=M1)

        assert len(parley_model.requests) == 3


async def test_older_clients_may_name_an_unknown_parent(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=PLAIN_VERSION) as client:
        conversation = await client.create()
        await say(client, conversation, "one", M1)
        await say(client, conversation, "two", parent_message_id=UNKNOWN)
        parley_model.says("Three", HOLD)
        await client.say(conversation, "three", parent_message_id=M1)  # the server knows this parent
        await parley_model.wait_until_held()
        await client.say(conversation, "joins", parent_message_id=UNKNOWN)
        parley_model.release()
        await client.over(conversation)

        one = (User("one"), Assistant("Done"))
        joined = (*one, User("three"), Assistant("Three"), User("joins"))
        assert bodies(parley_model) == [
            body("chat", *items, cwd=client.work, session=conversation)
            for items in (one[:1], (*one, User("two")), (*one, User("three")), joined)
        ]


async def test_the_same_branch_sent_twice_runs_once(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await say(client, conversation, "one", M1)
        await say(client, conversation, "two", M2)
        await say(client, conversation, "three", M3, parent_message_id=M1)
        await say(client, conversation, "four", M4)
        before = await read(client, conversation)
        for parent in (M1, M2, UNKNOWN):
            request = client.message(conversation, "three", message_id=M3, parent_message_id=parent)
            assert await client.read() == answered(request, {"status": "ok", "message_id": M3})
        await is_refused(
            client,
            conversation,
            message_id=M3,
            parent_message_id=M1,
            error_text="Message id was used for another message",
        )

        assert await read(client, conversation) == before
        assert len(parley_model.requests) == 4
