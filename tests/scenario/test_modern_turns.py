"""Turns at 2026-07-28: stream requests that stay open, and approval requests as results of calls.

Tests `parley.server.modern.rounds` and `parley.server.modern.listen`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from kit.clients.modern_client import ASKABLE, ModernHttpClient, ModernWireClient, modern_meta, speaking_modern
from kit.clients.reading import until_state
from kit.clients.requests import request
from kit.clients.shell_turns import shell
from kit.servers.http_server import HttpServer
from kit.servers.in_process_resident import InProcessResident
from kit.system.frozen_time import frozen_time
from kit.system.waiting import until
from parley.app.home_key import home_key
from parley.app.http_choice import HttpChoice
from parley.server.modern.rounds import RequestStates
from parley.testing import HOLD, ScriptedModel

ASKS = {"approval_policy": "untrusted", "sandbox": "workspace-write"}
CODEX_ASKS = {"approval-policy": "untrusted", "sandbox": "workspace-write"}


@pytest_asyncio.fixture
async def client(parley_model: ScriptedModel) -> AsyncIterator[ModernWireClient]:
    async with speaking_modern(parley_model, capabilities=ASKABLE) as client:
        yield client


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


@pytest_asyncio.fixture
async def http(server: HttpServer) -> AsyncIterator[ModernHttpClient]:
    async with ModernHttpClient(server.url, token=server.token, capabilities=ASKABLE) as client:
        yield client


def approval_of(result: Any) -> tuple[str, Any]:
    """Return the key and the parameters of the only approval request in a result."""
    assert result["resultType"] == "input_required"
    [(key, asked)] = result["inputRequests"].items()
    assert asked["method"] == "elicitation/create"
    assert asked["params"]["_meta"]["parley_approval_id"] == key
    return key, asked["params"]


def accepted(key: str, decision: str = "approved") -> dict[str, Any]:
    return {key: {"action": "accept", "content": {"decision": decision}}}


# --- streams -------------------------------------------------------------------------------


@pytest.mark.promises("modern.stream")
async def test_a_stream_stays_in_flight_and_is_answered_when_the_conversation_is_deleted(
    client: ModernWireClient, parley_model: ScriptedModel
) -> None:
    conversation = await client.create()
    stream = client.stream(conversation)
    snapshot = await client.read()
    parley_model.says("Hello", " there")
    sent = client.message(conversation, "hi")
    messages = await client.until_method("task_complete")
    deleted = client.call("conversationDelete", conversation_id=conversation)
    ends = await client.until_answer(stream)

    assert snapshot["method"] == "notifications/initial_state"
    assert [one["id"] for one in messages if "id" in one] == [sent]
    assert [one["params"]["msg"]["delta"] for one in messages if one.get("method") == "agent_message_delta"] == [
        "Hello",
        " there",
    ]
    last = messages[-1]["params"]["_meta"]["seq"]
    assert [one["params"]["code"] for one in ends if one.get("method") == "notifications/stream_disconnected"] == [
        "deleted"
    ]
    result = ends[-1]["result"]
    assert (result["resultType"], result["structuredContent"]["state"]) == ("complete", "deleted")
    assert result["structuredContent"]["seq"] >= last
    await client.until_answer(deleted) if all(one.get("id") != deleted for one in ends) else None


@pytest.mark.promises("modern.stream", "stream.take-over")
async def test_a_stream_takes_over_from_every_other_one_of_its_connection(
    client: ModernWireClient, parley_model: ScriptedModel
) -> None:
    """The first stream is of an earlier version, and the other streams are of this version."""
    conversation = await client.create()
    arguments = {"name": "conversationStream", "arguments": {"conversation_id": conversation}}
    await client.result_of(client.legacy("tools/call", arguments))
    await client.until_method("notifications/initial_state")
    second = client.stream(conversation)
    begun = await client.until_method("notifications/initial_state")
    client.stream(conversation)
    ended = await client.until_method("notifications/initial_state")
    parley_model.says("Hello")
    client.message(conversation, "hi")
    messages = await client.until_method("task_complete")
    messages += await client.until_answer(client.legacy("ping", {}))

    received = [(one.get("id"), one.get("params", {}).get("code")) for one in (*begun[:-1], *ended[:-1])]
    assert received == [(None, None), (None, "taken_over"), (second, None)]
    assert ended[1]["result"]["structuredContent"] == {"seq": 1, "state": "idle"}
    assert [one.get("method") for one in messages].count("agent_message") == 1


@pytest.mark.promises("modern.stream")
async def test_a_cancelled_stream_ends_without_an_answer_and_goes_on_by_position(
    client: ModernWireClient, parley_model: ScriptedModel
) -> None:
    conversation = await client.create()
    stream = client.stream(conversation)
    parley_model.says("One")
    client.message(conversation, "1")
    messages = await client.until_method("task_complete")
    client.cancel(stream)
    parley_model.says("Two")
    sent = client.message(conversation, "2")
    await client.until_answer(sent)
    await until_state(client, conversation, "idle")
    client.stream(conversation, after=messages[-1]["params"]["_meta"]["seq"])
    snapshot = await client.read()

    said = [one["msg"].get("message") for one in snapshot["params"]["initial_state"]["events"]]
    assert ("Two" in said, "One" in said) == (True, False)


@pytest.mark.promises("modern.stream")
async def test_a_closed_http_stream_ends_the_waiting_and_not_the_turn(
    server: HttpServer, http: ModernHttpClient, parley_model: ScriptedModel
) -> None:
    parley_model.says("Hello", HOLD, " there")
    async with http.call_stream("codex", prompt="hi") as stream:
        await stream.wait_for_message("agent_message_delta")
    await until(lambda: len(server.server.core.clients) == 0)
    parley_model.release()
    [listed] = (await http.call("conversationsList"))["conversations"]
    seq, said = 0, ""
    while "there" not in said:
        page = await http.call(
            "conversationRead", conversation_id=listed["conversation_id"], after=seq, wait_seconds=20
        )
        seq = page["seq"]
        said += "".join(one["msg"].get("message", "") for one in page["events"])

    assert "Hello there" in said


@pytest.mark.promises("modern.stream")
async def test_a_stream_over_http_has_the_events_of_its_conversation_alone(
    http: ModernHttpClient, parley_model: ScriptedModel
) -> None:
    first, second = await http.create(), await http.create()
    parley_model.says("Hello")
    async with http.call_stream("conversationStream", conversation_id=first) as stream:
        assert (await stream.next()).message["method"] == "notifications/initial_state"  # type: ignore[union-attr]  # an event
        await http.say(first, "hi")
        await stream.wait_for_message("task_complete")
        await http.call("conversationDelete", conversation_id=first)
        rest = await stream.rest()

    assert all(one.id is None for one in stream.events)
    assert {one.message["params"]["_meta"]["conversationId"] for one in stream.events[:-1]} == {first}
    assert rest[-1]["result"]["structuredContent"]["state"] == "deleted"
    assert second


@pytest.mark.promises("modern.cancel")
async def test_a_cancelled_codex_call_leaves_its_turn(
    client: ModernWireClient, parley_model: ScriptedModel
) -> None:
    parley_model.says("Hello", HOLD, " there")
    call = client.call("codex", prompt="hi")
    await client.until_method("agent_message_delta")
    client.cancel(call)
    parley_model.release()
    [listed] = (await client.value_of(client.call("conversationsList")))["conversations"]
    await until_state(client, listed["conversation_id"], "idle")
    page = await client.value_of(client.call("conversationRead", conversation_id=listed["conversation_id"]))

    assert page["events"][-1]["msg"] == {"type": "task_complete", "last_agent_message": "Hello there"}


# --- subscriptions -------------------------------------------------------------------------


@pytest.mark.promises("modern.listen")
async def test_a_listener_is_notified_of_changes_of_its_resources_alone(client: ModernWireClient) -> None:
    first, second = await client.create(), await client.create()
    uris = [f"parley://conversations/{first}", "parley://nothing"]
    listener = client.request("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
    acknowledged = await client.read()
    messages = await client.until_answer(client.call("conversationRename", conversation_id=second, title="b"))
    client.call("conversationRename", conversation_id=first, title="a")
    messages += await client.until_method("notifications/resources/updated")
    client.cancel(listener)

    meta = {"io.modelcontextprotocol/subscriptionId": listener}
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"] == {"_meta": meta, "notifications": {"resourceSubscriptions": uris[:1]}}
    updated = [one["params"] for one in messages if one.get("method") == "notifications/resources/updated"]
    assert updated == [{"_meta": meta, "uri": uris[0]}]


@pytest.mark.promises("modern.listen", "modern.stream")
async def test_requests_that_stay_in_flight_are_answered_when_the_server_stops(client: ModernWireClient) -> None:
    conversation = await client.create()
    listener = client.request("subscriptions/listen", {"notifications": {"resourcesListChanged": True}})
    await client.until_method("notifications/subscriptions/acknowledged")
    stream = client.stream(conversation)
    await client.until_method("notifications/initial_state")
    await client.raw.process.close()
    answers: dict[int, Any] = {}
    while len(answers) < 2:
        message = await client.read()
        if "result" in message:
            answers[message["id"]] = message["result"]

    assert answers[listener]["resultType"] == answers[stream]["resultType"] == "complete"
    assert answers[listener]["_meta"].items() >= {"io.modelcontextprotocol/subscriptionId": listener}.items()
    assert answers[stream]["structuredContent"]["state"] == "idle"


# --- approvals -----------------------------------------------------------------------------


@pytest.mark.promises("modern.approvals")
async def test_a_codex_call_asks_by_its_result_and_goes_on_with_the_answer(
    client: ModernWireClient, parley_model: ScriptedModel
) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    parley_model.says("Done")
    first = await client.until_answer(client.call("codex", prompt="go", **CODEX_ASKS))
    key, asked = approval_of(first[-1]["result"])
    second = await client.until_answer(
        client.retry("codex", first[-1]["result"], accepted(key), prompt="go", **CODEX_ASKS)
    )

    assert first[-2]["method"] == "exec_approval_request"
    assert "touch made" in asked["message"]
    assert not [one for one in first + second if "id" in one and "method" in one]
    result = second[-1]["result"]
    assert (result["resultType"], result["structuredContent"]["content"]) == ("complete", "Done")
    kinds = [one["method"] for one in second if "method" in one]
    assert ("exec_command_end" in kinds, "session_configured" in kinds) == (True, False)


@pytest.mark.promises("modern.approvals")
async def test_a_stream_asks_by_its_result_and_goes_on_after_the_approval(
    http: ModernHttpClient, parley_model: ScriptedModel
) -> None:
    conversation = await http.create(**ASKS)
    parley_model.says(shell("c1", "touch", "made"))
    parley_model.says("Done")
    async with http.call_stream("conversationStream", conversation_id=conversation) as stream:
        await stream.next()
        await http.say(conversation, "go")
        asked = (await stream.rest())[-1]["result"]
    key, _ = approval_of(asked)
    more = {"inputResponses": accepted(key), "requestState": asked["requestState"]}
    async with http.call_stream("conversationStream", more=more, conversation_id=conversation) as stream:
        await stream.wait_for_message("task_complete")
        methods = [one.message["method"] for one in stream.events]

    assert "notifications/initial_state" not in methods
    assert methods[0] == "approval_settled"
    assert "exec_approval_request" not in methods


@pytest.mark.promises("modern.approvals")
@pytest.mark.parametrize(
    "responses", [{}, None, {"other": {"action": "accept"}}, "unfit", {"KEY": 5}, {"KEY": {"action": "maybe"}}]
)
async def test_a_missing_or_unfit_answer_is_asked_for_again(
    client: ModernWireClient, parley_model: ScriptedModel, responses: Any
) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    first = (await client.until_answer(client.call("codex", prompt="go", **CODEX_ASKS)))[-1]["result"]
    key, _ = approval_of(first)
    if isinstance(responses, dict):
        responses = {key if name == "KEY" else name: value for name, value in responses.items()}
    again = (await client.until_answer(client.retry("codex", first, responses, prompt="go", **CODEX_ASKS)))[-1]

    assert approval_of(again["result"])[0] == key


@pytest.mark.promises("modern.approvals")
async def test_an_approval_that_was_settled_elsewhere_does_not_stop_the_call(
    client: ModernWireClient, parley_model: ScriptedModel
) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    parley_model.says("Done")
    first = (await client.until_answer(client.call("codex", prompt="go", **CODEX_ASKS)))[-1]["result"]
    key, _ = approval_of(first)
    await client.value_of(client.call("approvalAnswer", approval_id=key, decision="denied"))
    second = await client.until_answer(client.retry("codex", first, accepted(key), prompt="go", **CODEX_ASKS))

    settled = [one["params"]["msg"]["decision"] for one in second if one.get("method") == "approval_settled"]
    assert (settled, second[-1]["result"]["structuredContent"]["content"]) == (["denied"], "Done")


@pytest.mark.promises("hosts.dismissed", "hosts.results", "hosts.timeouts")
async def test_a_host_is_told_what_was_not_done_and_how_an_earlier_turn_ended(parley_model: ScriptedModel) -> None:
    for name in ("first", "second"):
        parley_model.says(shell(name, "touch", name))
    parley_model.says("Denied")
    parley_model.says("Slow, ", HOLD, "but complete")
    parley_model.says("Next")
    async with speaking_modern(parley_model, capabilities=ASKABLE, name="claude-code") as client:
        result = (await client.until_answer(client.call("codex", prompt="go", **CODEX_ASKS)))[-1]["result"]
        for _ in range(2):
            dismissed = {approval_of(result)[0]: {"action": "cancel"}}
            request = client.retry("codex", result, dismissed, prompt="go", **CODEX_ASKS)
            result = (await client.until_answer(request))[-1]["result"]
        thread = result["structuredContent"]["threadId"]
        waiting = client.call("codex-reply", threadId=thread, prompt="slowly")
        await parley_model.wait_until_held()
        client.cancel(waiting)
        parley_model.release()
        await until_state(client, thread, "idle")
        reply = await client.result_of(client.call("codex-reply", threadId=thread, prompt="and?"))

    assert result["content"][0]["text"] == "Denied"
    for name in ("first", "second"):
        assert f"the client dismissed the question: run `touch {name}`" in result["content"][1]["text"]
    assert "That turn ended with:\nSlow, but complete" in reply["content"][1]["text"]


@pytest.mark.promises("modern.state")
async def test_a_forged_state_is_refused(client: ModernWireClient, parley_model: ScriptedModel) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    first = (await client.until_answer(client.call("codex", prompt="go", **CODEX_ASKS)))[-1]["result"]
    key, _ = approval_of(first)
    state = first["requestState"]
    forged = [
        ({**first, "requestState": state[:-1] + ("A" if state[-1] != "A" else "B")}, "codex", "go"),
        ({**first, "requestState": state + "="}, "codex", "go"),
        ({**first, "requestState": state + "!"}, "codex", "go"),
        ({**first, "requestState": "AAAA"}, "codex", "go"),
        ({**first, "requestState": 5}, "codex", "go"),
        (first, "codex", "another prompt"),
        (first, "codex-reply", "go"),
    ]
    numbers = []
    for asked, tool, prompt in forged:
        request = client.retry(tool, asked, accepted(key), prompt=prompt, **CODEX_ASKS)
        numbers.append((await client.until_answer(request))[-1]["error"]["code"])

    assert numbers == [-32602] * len(forged)


@pytest.mark.promises("modern.approvals", "modern.state")
async def test_an_approval_over_http_belongs_to_its_token_and_outlives_the_server(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    choice = HttpChoice(token="t" * 32)
    parley_model.says(shell("c1", "touch", "made"))
    parley_model.says(shell("c2", "touch", "other"))
    async with HttpServer(parley_model, tmp_path / "home", choice=choice) as server:
        call = {"name": "codex", "arguments": {"prompt": "go", "cwd": str(server.work), **CODEX_ASKS}}
        client = await server.modern_client(token="t" * 32, capabilities=ASKABLE)
        phone = await server.modern_client(token=await server.create_token("phone", "admin"), capabilities=ASKABLE)
        asked = [(await one.ask("tools/call", call)).json["result"] for one in (client, phone)]
        await server.revoke_token("phone")
        again = await server.modern_client(token=await server.create_token("phone", "admin"), capabilities=ASKABLE)
        retries = [
            {**call, "inputResponses": accepted(approval_of(one)[0]), "requestState": one["requestState"]}
            for one in asked
        ]
        states = RequestStates(home_key(str(server.files.path)))
        state = states.decode(asked[0]["requestState"])
        assert state is not None
        expired = states.encode(msgspec.structs.replace(state, expires=time.time()))
        refused = [
            await phone.ask("tools/call", retries[1]),
            await again.ask("tools/call", retries[0]),
            await again.ask("tools/call", retries[1]),
            await client.ask("tools/call", {**retries[0], "requestState": expired}),
        ]
    parley_model.says("Done")
    async with HttpServer(parley_model, tmp_path / "home", choice=choice) as server:
        client = await server.modern_client(token="t" * 32, capabilities=ASKABLE)
        done = (await client.ask("tools/call", retries[0])).json["result"]
        made = [path.name for path in server.work.iterdir()]

    assert [one.status for one in refused] == [401, 200, 200, 200]
    assert [one.json["error"]["code"] for one in refused[1:]] == [-32602] * 3
    assert (done["resultType"], done["structuredContent"]["content"], made) == ("complete", "Done", ["made"])


async def result_on(path: str, params: dict[str, Any]) -> Any:
    """Call a tool on a socket; return its result."""
    reader, writer = await asyncio.open_unix_connection(path, limit=1024 * 1024)
    message = request(1, "tools/call", {**params, "_meta": modern_meta(ASKABLE)})
    writer.write(json.dumps(message).encode() + b"\n")
    answer: Any = {}
    while "result" not in answer:
        answer = json.loads(await reader.readline())
    writer.close()
    return answer["result"]


@pytest.mark.promises("modern.state")
async def test_an_approval_on_the_socket_outlives_a_resident_server_without_http(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    async with InProcessResident(parley_model, tmp_path / "home") as server:
        call = {"name": "codex", "arguments": {"prompt": "go", "cwd": str(server.work), **CODEX_ASKS}}
        asked = await result_on(server.path, call)
    parley_model.says("Done")
    more = {"inputResponses": accepted(approval_of(asked)[0]), "requestState": asked["requestState"]}
    async with InProcessResident(parley_model, tmp_path / "home") as server:
        done = await result_on(server.path, {**call, **more})

    assert (done["resultType"], done["structuredContent"]["content"]) == ("complete", "Done")


@pytest.mark.promises("modern.rounds")
async def test_the_ninth_approval_offers_the_session_first_and_the_tenth_is_a_text(
    client: ModernWireClient, parley_model: ScriptedModel
) -> None:
    for number in range(10):
        parley_model.says(shell(f"c{number}", "touch", f"made{number}"))
    answer = (await client.until_answer(client.call("codex", prompt="go", **CODEX_ASKS)))[-1]["result"]
    firsts = []
    for _ in range(9):
        key, asked = approval_of(answer)
        firsts.append(asked["requestedSchema"]["properties"]["decision"]["oneOf"][0]["const"])
        request = client.retry("codex", answer, accepted(key), prompt="go", **CODEX_ASKS)
        answer = (await client.until_answer(request))[-1]["result"]

    assert firsts == ["approved"] * 8 + ["approved_for_session"]
    assert answer["resultType"] == "complete"
    assert "approvalAnswer" in answer["structuredContent"]["content"]


@pytest.mark.promises("modern.approvals")
async def test_a_client_that_cannot_be_asked_gets_no_approval(parley_model: ScriptedModel) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    config = '[approvals]\nwhen_nobody = "return"\n'
    async with speaking_modern(parley_model, config=config) as client:
        result = (await client.until_answer(client.call("codex", prompt="go", **CODEX_ASKS)))[-1]["result"]

    assert (result["resultType"], "approvalAnswer" in result["content"][0]["text"]) == ("complete", True)


@pytest.mark.promises("modern.approvals")
async def test_a_client_that_never_repeats_its_call_is_no_recipient(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    parley_model.says("Denied")
    config = "[approvals]\ntimeout_seconds = 1\n"
    async with speaking_modern(parley_model, config=config, capabilities=ASKABLE) as client:
        with frozen_time():
            first = (await client.until_answer(client.call("codex", prompt="go", **CODEX_ASKS)))[-1]["result"]
        _, asked = approval_of(first)
        conversation = asked["_meta"]["parley_conversation_id"]
        await until_state(client, conversation, "idle")
        page = await client.value_of(client.call("conversationRead", conversation_id=conversation))

    settled = [one["msg"]["decision"] for one in page["events"] if one["msg"]["type"] == "approval_settled"]
    assert settled == ["timed_out"]
