"""Cancelled requests at 2025-11-25: a request that the cancellation ends gets no response.

Every other request gets one.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from kit.clients.messages import answered, delta, live
from kit.clients.requests import request
from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, Says, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

PLAIN_INTERRUPTED: Final = {"type": "error", "message": " Turn interrupted"}
INTERRUPTED: Final = {**PLAIN_INTERRUPTED, "reason": "interrupted", "principal": "local"}


def answers_in(messages: list[Any]) -> list[int | str]:
    return [message["id"] for message in messages if "method" not in message]


def methods_in(messages: list[Any]) -> list[str]:
    return [message["method"] for message in messages if "method" in message]


async def silence(client: WireClient) -> list[Any]:
    """Send a ping, and return all messages before its answer: everything that the server has sent so far."""
    ping = client.request("ping", {})
    return (await client.until_answer(ping))[:-1]


async def session_of(client: WireClient, call: int) -> str:
    """Return the conversation of a `codex` call that has just begun."""
    (*_, configured) = await client.until_method("session_configured")
    assert configured["params"]["_meta"] == {"requestId": call}
    return str(configured["params"]["msg"]["session_id"])


# --- codex and codex-reply ---------------------------------------------------------------


@pytest.mark.promises("cancel.codex", "cancel.unanswered")
async def test_a_cancelled_call_sees_its_turn_end_and_gets_no_answer(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD)
    parley_model.says("par", HOLD)
    async with speaking(parley_model, version=FULL_VERSION) as client:
        call = client.call("codex", prompt="first")
        session = await session_of(client, call)
        await client.until_method("agent_message_delta")
        client.cancel(call)
        first = [*await client.until_method("error"), *await silence(client)]

        reply = client.call("codex-reply", sessionId=session, prompt="second")
        await client.until_method("agent_message_delta")
        client.cancel(reply)
        second = [*await client.until_method("error"), *await silence(client)]
        last = await client.until_answer(client.call("codex-reply", sessionId=session, prompt="third"))

        for received in (first, second):
            assert methods_in(received) == ["codex/event", "error"]
            assert answers_in(received) == []
            assert received[0]["params"]["msg"] == INTERRUPTED
        assert last[-1]["result"]["structuredContent"]["message"] == "Done"


@pytest.mark.promises("cancel.unanswered")
async def test_calls_that_are_cancelled_at_once_get_no_answer_and_their_ids_are_free(
    parley_model: ScriptedModel,
) -> None:
    parley_model.default = Says((HOLD,))
    async with speaking(parley_model, version=FULL_VERSION) as client:
        with client.at_once():
            calls = [client.call("codex", prompt="go") for _ in range(10)]
            for call in calls:
                client.cancel(call)
        received: list[Any] = []
        while methods_in(received).count("error") < len(calls):
            received.append(await client.read())
        received += await silence(client)
        for call in calls:
            client.raw.send(request(call, "ping"))

        assert answers_in(received) == []
        assert [await client.read() for _ in calls] == [
            {"jsonrpc": "2.0", "id": call, "result": {}} for call in calls
        ]


@pytest.mark.promises("cancel.unanswered")
async def test_the_other_call_of_an_interrupted_turn_is_answered(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD)
    async with speaking(parley_model, version=FULL_VERSION) as client:
        first = client.call("codex", prompt="first")
        session = await session_of(client, first)
        await client.until_method("agent_message_delta")
        second = client.call("codex-reply", sessionId=session, prompt="second")
        await client.until(lambda one: "second" in str(one))
        client.cancel(second)
        received = [*await client.until_answer(first), *await silence(client)]

        (answer,) = [one for one in received if one.get("id") == first]
        assert answer["result"]["structuredContent"]["message"] == " Turn interrupted"
        assert answers_in(received) == [first]


@pytest.mark.promises("cancel.unanswered")
async def test_a_call_that_is_cancelled_after_its_turn_was_done_is_answered_and_no_other_turn_ends(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        call = client.call("codex", prompt="go")
        session = (await client.until_answer(call))[-1]["result"]["structuredContent"]["sessionId"]
        parley_model.says("par", HOLD, "tial")
        reply = client.call("codex-reply", sessionId=session, prompt="on")
        await client.until_method("agent_message_delta")
        client.cancel(call)
        assert await silence(client) == []
        parley_model.release()

        answer = (await client.until_answer(reply))[-1]
        assert answer["result"]["structuredContent"]["message"] == "partial"


# --- conversationSendMessage --------------------------------------------------------------


@pytest.mark.promises("cancel.answered-send")
async def test_the_cancellation_of_an_answered_send_is_ignored(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD, "tial")
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await client.open_stream(conversation, event_meta=False)
        sent = client.message(conversation, "go")
        await client.until_method("agent_message_delta")
        client.cancel(sent)
        client.cancel(sent)
        assert await silence(client) == []
        parley_model.release()
        rest = await client.until_method("task_complete")

        assert rest[0] == live(delta("tial"))
        assert rest[-1]["params"]["msg"] == {"type": "task_complete", "last_agent_message": "partial"}


@pytest.mark.promises("cancel.answered-send")
async def test_a_client_that_cancels_every_request_after_its_answer_can_do_everything(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("par", HOLD, "tial")
    async with speaking(parley_model, version=FULL_VERSION) as client:

        async def use(tool: str, **arguments: Any) -> Any:
            call = client.call(tool, **arguments)
            answer = (await client.until_answer(call))[-1]
            client.cancel(call)
            return answer["result"]["structuredContent"]

        created = await use("conversationCreate", cwd=str(client.raw.work))
        its = {"conversation_id": created["conversation_id"]}
        await use("conversationSendMessage", **its, content=[{"type": "text", "text": "go"}])
        await parley_model.wait_until_held()
        assert (await use("conversationStatus", **its))["state"] == "running"
        parley_model.release()
        seen: list[Any] = []
        after = 0
        while not seen or seen[-1]["type"] != "task_complete":
            page = await use("conversationRead", **its, after=after, wait_seconds=10)
            seen += [one["msg"] for one in page["events"]]
            after = page["seq"]

        assert seen[-1] == {"type": "task_complete", "last_agent_message": "partial"}
        reply = await use("codex-reply", sessionId=its["conversation_id"], prompt="on")
        assert reply["message"] == "Done"


@pytest.mark.promises("cancel.send", "cancel.unanswered")
@pytest.mark.parametrize("version", [FULL_VERSION, PLAIN_VERSION])
async def test_a_send_that_is_cancelled_before_its_answer_is_interrupted(
    parley_model: ScriptedModel, version: str
) -> None:
    parley_model.says(HOLD)
    async with speaking(parley_model, version=version) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        with client.at_once():
            sent = client.message(conversation, "go")
            client.cancel(sent)
        received = [*await client.until_method("error"), *await silence(client)]

        assert answers_in(received) == ([] if version == FULL_VERSION else [sent])
        error = INTERRUPTED if version == FULL_VERSION else PLAIN_INTERRUPTED
        assert [one["params"]["msg"] for one in received if one.get("method") == "error"] == [error]


# --- other tools ------------------------------------------------------------------------------


@pytest.mark.promises("stream.pause")
async def test_the_cancellation_of_an_answered_stream_pauses_it(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD, "tial")
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        stream, _ = await client.open_stream(conversation)
        client.message(conversation, "go")
        await client.until_method("agent_message_delta")
        client.cancel(stream)
        assert await silence(client) == []
        parley_model.release()
        read = client.call("conversationRead", conversation_id=conversation, after=4, wait_seconds=10)

        assert methods_in(await client.until_answer(read)) == []


@pytest.mark.promises("cancel.read")
@pytest.mark.parametrize("version", [FULL_VERSION, PLAIN_VERSION])
async def test_a_read_that_waits_ends_with_its_cancellation_at_the_newest_version(
    parley_model: ScriptedModel, version: str
) -> None:
    async with speaking(parley_model, version=version) as client:
        conversation = await client.create()
        waiting = [
            client.call("conversationRead", conversation_id=conversation, after=1, wait_seconds=50)
            for _ in range(2)
        ]
        assert await silence(client) == []
        client.cancel(waiting[0])
        assert await silence(client) == []
        client.message(conversation, "go")
        received = await client.until_answer(waiting[1])
        received += await silence(client)

        assert (waiting[0] in answers_in(received)) == (version != FULL_VERSION)
        assert answers_in(received).count(waiting[1]) == 1


@pytest.mark.promises("cancel.nothing")
async def test_requests_that_a_cancellation_does_not_affect_are_answered(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        its = {"conversation_id": conversation}
        with client.at_once():
            requests = [
                client.request("ping", {}),
                client.request("tools/list", {}),
                client.call("conversationCreate", cwd=str(client.raw.work), model=MODEL),
                client.call("conversationsList"),
                client.call("conversationRead", **its),
                client.call("conversationInterrupt", **its),
                client.call("conversationStatus", **its),
                client.call("conversationRename", **its, title="Another name"),
                client.call("conversationFork", **its),
                client.call("approvalsList"),
                client.call("conversationArchive", **its),
                client.call("conversationDelete", **its),
                client.call("no such tool"),
            ]
            for one in requests:
                client.cancel(one)
        received = [await client.read() for _ in requests]

        assert sorted(map(int, answers_in(received))) == requests
        assert await silence(client) == []


# --- progress -----------------------------------------------------------------------------


@pytest.mark.promises("codex.progress-before-result")
async def test_progress_comes_while_the_turn_runs_and_never_with_the_result(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD, "tial")
    async with speaking(parley_model, version=FULL_VERSION) as client:
        params = {"name": "codex", "arguments": {"prompt": "go"}, "_meta": {"progressToken": "t"}}
        call = client.request("tools/call", params)
        received = await client.until_method("notifications/progress")
        await parley_model.wait_until_held()
        parley_model.release()
        rest = await client.until_answer(call)
        after = await silence(client)

        progress = [one["params"] for one in (*received, *rest) if one.get("method") == "notifications/progress"]
        assert progress[0] == {"progressToken": "t", "progress": 2, "message": "user_message"}
        # the server sends it together with the result
        assert [one for one in progress if one["message"] == "task_complete"] == []
        assert after == []


@pytest.mark.promises("codex.progress-before-result")
async def test_a_cancelled_call_gets_no_more_progress(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD)
    async with speaking(parley_model, version=FULL_VERSION) as client:
        params = {"name": "codex", "arguments": {"prompt": "go"}, "_meta": {"progressToken": "t"}}
        call = client.request("tools/call", params)
        await client.until_method("notifications/progress")
        client.cancel(call)
        rest = [*await client.until_method("error"), *await silence(client)]

        assert methods_in(rest) == ["codex/event", "error"]


# --- conversationCreate -------------------------------------------------------------------


@pytest.mark.promises("create.optional")
@pytest.mark.parametrize("given", [{}, {"prompt": None, "model": None}, {"prompt": "x"}, {"model": "other"}])
async def test_prompt_and_model_may_be_left_out(parley_model: ScriptedModel, given: dict[str, Any]) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        call = client.call("conversationCreate", cwd=str(client.raw.work), **given)
        created = await client.value_of(call)

        assert created == {"conversation_id": created["conversation_id"], "model": given.get("model") or MODEL}


@pytest.mark.promises("create.optional", "versions.plain")
@pytest.mark.parametrize("field", ["prompt", "model"])
async def test_older_clients_get_the_name_of_the_missing_field(parley_model: ScriptedModel, field: str) -> None:
    async with speaking(parley_model) as client:
        arguments = {"prompt": "", "model": MODEL, "cwd": str(client.raw.work)}
        del arguments[field]
        message = f"Failed to parse arguments for conversationCreate: missing field `{field}`"
        refused = client.call("conversationCreate", **arguments)

        result = await client.result_of(refused)
        assert (result["structuredContent"], result["isError"]) == ({"message": message}, True)
        assert answered(client.call("conversationsList"), {"conversations": []}) == await client.read()
