"""Tasks at 2026-07-28: the extension `io.modelcontextprotocol/tasks`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from kit.clients.modern_client import ASKABLE, modern_meta
from kit.servers.local_server import LocalClient, LocalServer
from parley.server.context import Principal, Role
from parley.wire.mcp import TASKS_EXTENSION

EXTENSION: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
SERVER_INFO = "io.modelcontextprotocol/serverInfo"


async def answer(client: LocalClient, method: str, capabilities: Any, **params: Any) -> Any:
    return await client.answer_to(client.request(method, {**params, "_meta": modern_meta(capabilities)}))


async def result(client: LocalClient, method: str, capabilities: Any = None, **params: Any) -> Any:
    """Return the result of a request, without the members that every result has. For an error, return its code."""
    got = await answer(client, method, {**ASKABLE, **EXTENSION} if capabilities is None else capabilities, **params)
    if "error" in got:
        return got["error"]["code"]
    assert list(got["result"].pop("_meta")) == [SERVER_INFO]
    return got["result"]


async def start_task(client: LocalClient, prompt: str, home: str) -> Any:
    arguments = {"prompt": prompt, "cwd": home}
    return await result(client, "tools/call", name="codex", arguments=arguments, task={"ttl": 1})


async def until_status(client: LocalClient, server: LocalServer, task: Any, status: str) -> Any:
    """Ask for a task until it has a status."""
    found: Any = None
    for _ in range(100):
        if (found := await result(client, "tasks/get", taskId=task["taskId"]))["status"] == status:
            break
        await server.settle_down()
    assert found["status"] == status
    return found


@pytest.mark.promises("modern.task-create", "modern.task-get")
async def test_a_call_is_answered_with_a_task_that_later_has_the_result(home: str) -> None:
    async with LocalServer(home) as server:
        client = server.new_client()
        task = await start_task(client, "0", home)
        done = await until_status(client, server, task, "completed")

        assert task == {
            "resultType": "task",
            "taskId": task["taskId"],
            "status": "working",
            "createdAt": task["createdAt"],
            "lastUpdatedAt": task["createdAt"],
            "ttlMs": None,
            "pollIntervalMs": 1000,
        }
        assert done["resultType"] == "complete"
        assert done["result"]["content"] == [{"type": "text", "text": "Done"}]
        assert [one for one in client.messages if "method" in one] == []


@pytest.mark.promises("modern.task-get", "modern.task-update")
async def test_an_approval_is_part_of_the_task_and_is_answered_by_its_key(home: str) -> None:
    async with LocalServer(home) as server:
        client = server.new_client()
        observer = server.new_client(principal=Principal(name="guest", role=Role.OBSERVER))
        task = await start_task(client, "1", home)
        asking = await until_status(client, server, task, "input_required")
        (key,) = asking["inputRequests"]
        unable = await result(client, "tasks/get", EXTENSION, taskId=task["taskId"])
        watched = await result(observer, "tasks/get", taskId=task["taskId"])
        given = {key: {"action": "accept", "content": {"decision": "approved"}}}
        refused = await result(observer, "tasks/update", taskId=task["taskId"], inputResponses=given)
        other = {str(uuid4()): {"action": "accept"}}
        ignored = await result(client, "tasks/update", taskId=task["taskId"], inputResponses=other)
        malformed = {key: {"action": "accept", "content": {"decision": "perhaps"}}}
        await result(client, "tasks/update", taskId=task["taskId"], inputResponses=malformed)
        waiting = await until_status(client, server, task, "input_required")
        accepted = await result(client, "tasks/update", taskId=task["taskId"], inputResponses=given)
        again = await result(client, "tasks/update", taskId=task["taskId"], inputResponses=given)
        done = await until_status(client, server, task, "completed")

        assert asking["inputRequests"][key]["method"] == "elicitation/create"
        assert waiting["inputRequests"].keys() == {key}
        assert (unable["inputRequests"], watched["inputRequests"]) == ({}, {})
        assert refused == -32600
        assert ignored == accepted == again == {"resultType": "complete"}
        assert server.decisions == [(1, "approved")]
        assert "inputRequests" not in done


@pytest.mark.promises("modern.task-cancel")
async def test_cancelling_is_acknowledged_and_interrupts_the_turn(home: str) -> None:
    async with LocalServer(home) as server:
        client = server.new_client()
        task = await start_task(client, "1", home)
        await until_status(client, server, task, "input_required")
        first = await result(client, "tasks/cancel", taskId=task["taskId"])
        cancelled = await until_status(client, server, task, "cancelled")
        second = await result(client, "tasks/cancel", taskId=task["taskId"])

        assert first == second == {"resultType": "complete"}
        assert "result" not in cancelled


@pytest.mark.promises("modern.task-create")
async def test_without_the_extension_there_are_no_tasks(home: str) -> None:
    async with LocalServer(home) as server:
        client = server.new_client()
        task = await start_task(client, "0", home)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            refused = await answer(client, method, {}, taskId=task["taskId"], inputResponses={})
            assert refused["error"]["code"] == -32021, method
            required = refused["error"]["data"]["requiredCapabilities"]
            assert required == {"extensions": {TASKS_EXTENSION: {}}}
        for method in ("tasks/list", "tasks/result"):
            assert await result(client, method, taskId=task["taskId"]) == -32601
        plain = await result(client, "tools/call", {}, name="codex", arguments={"prompt": "0", "cwd": home})
        unknown = await result(client, "tasks/get", taskId=f"{uuid4()}.1")
        discovered = await result(client, "server/discover")
        legacy = await server.client()
        update = legacy.request("tasks/update", {"taskId": task["taskId"], "inputResponses": {}})

        assert plain["resultType"] == "complete"
        assert plain["content"] == [{"type": "text", "text": "Done"}]
        assert unknown == -32602
        assert discovered["capabilities"]["extensions"] == {TASKS_EXTENSION: {}}
        assert "tasks" not in discovered["capabilities"]
        assert (await legacy.answer_to(update))["error"]["code"] == -32601
