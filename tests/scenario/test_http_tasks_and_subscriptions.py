"""Tasks, and subscriptions of resources, over HTTP: with a session, and at 2026-07-28."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kit.clients.http_client import HttpClient
from kit.clients.modern_client import ASKABLE, ModernHttpClient
from kit.clients.reading import until_state
from kit.clients.requests import request, tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.servers.resident_process import ResidentProcess
from kit.system.waiting import until
from parley.testing import HOLD, ScriptedModel
from parley.wire.mcp import TASKS_EXTENSION

CODEX = {"prompt": "go", "approval-policy": "untrusted", "sandbox": "workspace-write"}
TOKEN = "t" * 32
APPROVED = {"action": "accept", "content": {"decision": "approved"}}


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


@pytest.mark.promises("tasks.create", "tasks.status", "tasks.input-required", "tasks.result")
async def test_a_task_with_a_session(server: HttpServer, parley_model: ScriptedModel) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    call = {"name": "codex", "arguments": {**CODEX, "cwd": str(server.work)}, "task": {"ttl": 1000}}
    async with client.stream() as stream:
        task = (await client.post(request(1, "tools/call", call))).json["result"]["task"]
        asked = await stream.wait_for_message("elicitation/create")
        asking = (await client.post(request(2, "tasks/get", {"taskId": task["taskId"]}))).json["result"]
        await client.post({"jsonrpc": "2.0", "id": asked["id"], "result": APPROVED})
        result = (await client.post(request(3, "tasks/result", {"taskId": task["taskId"]}))).json["result"]
        await stream.until(lambda message: message.get("params", {}).get("status") == "completed")
    listed = (await client.post(request(4, "tasks/list"))).json["result"]["tasks"]

    related = {"io.modelcontextprotocol/related-task": {"taskId": task["taskId"]}}
    assert (task["status"], asking["status"], result["content"][0]["text"]) == (
        "working",
        "input_required",
        "Done.",
    )
    assert asked["params"]["_meta"].items() >= related.items()
    assert [(one["taskId"], one["status"]) for one in listed] == [(task["taskId"], "completed")]
    statuses = [one.message["params"]["status"] for one in stream.events if "tasks/status" in one.message["method"]]
    assert statuses == ["input_required", "working", "completed"]
    assert (server.work / "made").exists()


@pytest.mark.promises("tasks.durable", "tasks.get")
@pytest.mark.child_process
async def test_a_task_survives_the_server_that_was_killed(parley_model: ScriptedModel, tmp_path: Path) -> None:
    env = {"PARLEY_SERVE_TOKEN": TOKEN}
    tasks = []
    parley_model.says("Done.")
    parley_model.says("The first half, ", HOLD)
    async with ResidentProcess(parley_model, tmp_path / "home", env=env) as resident:
        async with HttpClient(resident.description["url"], token=TOKEN) as client:
            await client.initialize()
            for number in range(2):
                call = {"name": "codex", "arguments": {"prompt": "go"}, "task": {"ttl": 1000}}
                tasks.append((await client.post(request(number, "tools/call", call))).json["result"]["task"])
                if not number:
                    await until_state(client, tasks[0]["taskId"].partition(".")[0], "idle")
            await parley_model.wait_until_held()
        resident.process.kill()
        await resident.process.wait()
    async with (
        ResidentProcess(parley_model, tmp_path / "home", env=env) as resident,
        HttpClient(resident.description["url"], token=TOKEN) as client,
    ):
        await client.initialize()
        named = [{"taskId": task["taskId"]} for task in tasks]
        found = [(await client.post(request(1, "tasks/get", one))).json["result"]["status"] for one in named]
        results = [(await client.post(request(1, "tasks/result", one))).json["result"] for one in named]

    assert found == ["completed", "failed"]
    assert results[0]["content"][0]["text"] == "Done."
    assert "server" in results[1]["content"][0]["text"]


@pytest.mark.promises("modern.task-create", "modern.task-get", "modern.task-update", "modern.headers")
async def test_a_task_without_a_session(server: HttpServer, parley_model: ScriptedModel) -> None:
    capabilities = {**ASKABLE, "extensions": {TASKS_EXTENSION: {}}}
    client = await server.modern_client(capabilities=capabilities)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    call = {"name": "codex", "arguments": {**CODEX, "cwd": str(server.work)}}
    task = (await client.ask("tools/call", call)).json["result"]
    named = {"taskId": task["taskId"]}
    conversation = task["taskId"].partition(".")[0]
    await until_state(client, conversation, "asking")
    asking = (await client.ask("tasks/get", named)).json["result"]
    [key] = asking["inputRequests"]
    updated = await client.ask("tasks/update", {**named, "inputResponses": {key: APPROVED}})
    await until_state(client, conversation, "idle")
    done = (await client.ask("tasks/get", named)).json["result"]
    plain = await server.modern_client()
    refused = await plain.ask("tasks/get", named)
    by_header = [await client.ask("tasks/get", named, Mcp_Name=given) for given in (task["taskId"], "other")]

    assert (task["resultType"], asking["status"], updated.status) == ("task", "input_required", 200)
    assert (done["status"], done["result"]["content"][0]["text"]) == ("completed", "Done.")
    assert (refused.status, refused.json["error"]["code"]) == (400, -32021)
    assert (by_header[0].status, by_header[1].json["error"]["code"]) == (200, -32020)
    assert (server.work / "made").exists()


@pytest.mark.promises("resources.subscribe", "resources.unsubscribe", "resources.list-changed")
async def test_subscriptions_with_a_session(server: HttpServer) -> None:
    client, other = await server.client(), await server.client()
    conversations = [await other.create() for _ in range(2)]
    uris = [f"parley://conversations/{conversation}" for conversation in conversations]
    for uri in uris:
        assert (await client.post(request(1, "resources/subscribe", {"uri": uri}))).json["result"] == {}
    await client.post(request(2, "resources/unsubscribe", {"uri": uris[0]}))
    await client.post(request(3, "resources/list"))
    async with client.stream() as stream:
        for conversation in conversations:
            await other.call("conversationRename", conversation_id=conversation, title="New")
        await stream.wait_for_message("notifications/resources/updated")
        if not any("list_changed" in one.message["method"] for one in stream.events):
            await stream.wait_for_message("notifications/resources/list_changed")

    assert {one.message["params"]["uri"] for one in stream.events if one.message["params"]} == {uris[1]}


@pytest.mark.promises("modern.listen", "modern.http")
async def test_a_request_that_listens(server: HttpServer) -> None:
    client: ModernHttpClient = await server.modern_client()
    conversation = await client.create()
    uri = f"parley://conversations/{conversation}"
    wanted = {"resourceSubscriptions": [uri, "parley://nothing"], "resourcesListChanged": True}
    async with client.stream_of("subscriptions/listen", {"notifications": wanted}) as stream:
        acknowledged = (await stream.next()).message  # type: ignore[union-attr]  # an event
        await client.call("conversationRename", conversation_id=conversation, title="New")
        received = [await stream.next(), await stream.next()]
    await until(lambda: server.service.client_count == 0)

    meta = acknowledged["params"]["_meta"]
    assert list(meta) == ["io.modelcontextprotocol/subscriptionId"]
    assert acknowledged["params"]["notifications"] == {**wanted, "resourceSubscriptions": [uri]}
    assert {one.message["method"] for one in received if one is not None} == {
        "notifications/resources/updated",
        "notifications/resources/list_changed",
    }
    assert all(one is not None and one.message["params"]["_meta"] == meta and one.id is None for one in received)


@pytest.mark.promises("modern.listen", "errors.codes")
async def test_a_request_that_listens_for_too_much(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    client: ModernHttpClient = await server.modern_client()
    wanted = {"resourceSubscriptions": [str(number) for number in range(1001)]}
    message = client.message("subscriptions/listen", {"notifications": wanted})

    error = (await client.post({**message, "id": "i" * 1000}, **client.headers_of(message))).json["error"]

    assert (error["code"], error["data"]["code"]) == (-32602, "too_many_subscriptions")
    assert not caplog.records


@pytest.mark.promises("errors.codes")
async def test_errors_repeat_little_of_the_request(server: HttpServer) -> None:
    client, modern = await server.client(), await server.modern_client()
    long, meta = "z" * 100_000, modern.message("ping")["params"]["_meta"]
    version = {name: long if "protocolVersion" in name else value for name, value in meta.items()}

    refused = [
        await client.post(tool(1, long, {})),
        await client.post(tool(1, "conversationsList", {"state": long})),
        await client.post(tool(1, "codex-reply", {"session_id": long, "prompt": "x"})),
        await client.post(request(1, long, {})),
        await client.post(request(1, "logging/setLevel", {"level": long})),
        await client.post(request(1, "prompts/get", {"name": long})),
        await client.post(request(1, "resources/read", {"uri": long})),
        await client.post(request(1, "ping", {"_meta": version}), Mcp_Session_Id=None),
    ]

    assert all(len(reply.body) < 2000 for reply in refused)
    assert all("error" in reply.json or reply.json["result"]["isError"] for reply in refused)
