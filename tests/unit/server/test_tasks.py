"""Turns as tasks: status, result and cancellation, all computed from the log."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from kit.servers.local_server import LocalClient, LocalServer
from kit.servers.orphaned_turns import settle
from kit.servers.remote_owner import FollowedTurn
from kit.servers.slow_store import SlowStore
from parley.conversation.state import Phase
from parley.server.context import Principal, Role
from parley.server.errors import UnknownTask
from parley.server.tasks import last_task, task_of_turn
from parley.wire.mcp import PLAIN_VERSION
from parley.wire.tasks import RELATED_TASK, TaskStatusChanged

STATUS = TaskStatusChanged.METHOD


async def result(client: LocalClient, method: str, **params: Any) -> Any:
    answer = await client.answer_to(client.request(method, params))
    return answer["result"] if "result" in answer else (answer["error"]["code"], answer["error"]["data"]["code"])


async def start_task(client: LocalClient, prompt: str, home: str) -> Any:
    """Run `codex` as a task; return the task."""
    answer = await result(
        client, "tools/call", name="codex", arguments={"prompt": prompt, "cwd": home}, task={"ttl": 1000}
    )
    assert list(answer) == ["task"]
    return answer["task"]


async def get(client: LocalClient, task: Any) -> Any:
    return await result(client, "tasks/get", taskId=task["taskId"])


def statuses(client: LocalClient) -> list[str]:
    return [one["params"]["status"] for one in client.messages if one.get("method") == STATUS]


@pytest.mark.promises("tasks.create", "tasks.get", "tasks.result", "tasks.status")
async def test_a_task_is_answered_at_once_and_its_result_is_fetched(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        task = await start_task(client, "0", home)
        conversation, _, start = task["taskId"].rpartition(".")
        answer = await result(client, "tasks/result", taskId=task["taskId"])
        done = await get(client, task)
        plain = await result(client, "tools/call", name="codex", arguments={"prompt": "0", "cwd": home})

        assert server.entry_types(conversation)[int(start) - 1] == "turn_started"
        assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", None, 1000)
        assert done == {
            "taskId": task["taskId"],
            "status": "completed",
            "createdAt": task["createdAt"],
            "lastUpdatedAt": done["lastUpdatedAt"],
            "ttl": None,
        }
        assert answer.pop("_meta") == {RELATED_TASK: {"taskId": task["taskId"]}}
        thread = {"threadId": conversation, "sessionId": conversation}
        assert answer == {**plain, "structuredContent": {**plain["structuredContent"], **thread}}
        assert statuses(client)[-1] == "completed"
        assert not any(one.get("method") == "codex/event" for one in client.messages[:3])


@pytest.mark.promises("tasks.input-required", "tasks.related", "tasks.status")
async def test_an_open_approval_is_asked_for_with_the_name_of_the_task(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        task = await start_task(client, "1", home)
        asked = await client.approval_request()
        waiting = await get(client, task)
        pending = client.request("tasks/result", {"taskId": task["taskId"]})
        client.answer(asked["id"], {"action": "accept", "content": {"decision": "approved"}})
        answer = await client.answer_to(pending)

        assert waiting["status"] == "input_required"
        assert asked["params"]["_meta"][RELATED_TASK] == {"taskId": task["taskId"]}
        assert RELATED_TASK not in asked["params"]
        assert len(client.asked) == 1
        assert answer["result"]["content"] == [{"type": "text", "text": "Done"}]
        assert statuses(client) == ["input_required", "working", "completed"]


@pytest.mark.promises("tasks.cancel")
async def test_cancelling_interrupts_the_turn_once(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        task = await start_task(client, "1", home)
        await client.approval_request()
        waiting = client.request("tasks/result", {"taskId": task["taskId"]})
        cancelled = await result(client, "tasks/cancel", taskId=task["taskId"])
        answer = await client.answer_to(waiting)
        again = await result(client, "tasks/cancel", taskId=task["taskId"])

        assert (cancelled["status"], cancelled["statusMessage"]) == ("cancelled", "Turn interrupted")
        assert answer["result"]["isError"]
        assert answer["result"]["structuredContent"]["reason"] == "interrupted"
        assert again == (-32602, "task_has_ended")
        assert (await get(client, task))["status"] == "cancelled"


@pytest.mark.promises("tasks.durable", "tasks.get", "tasks.result")
async def test_every_turn_is_a_task_for_every_later_session(home: str) -> None:
    store = SlowStore()
    async with LocalServer(home, store=store) as server:
        client = await server.client()
        first = await start_task(client, "0", home)
        before = await result(client, "tasks/result", taskId=first["taskId"])
        done = await get(client, first)
        assert done["status"] == "completed"
        conversation = first["taskId"].partition(".")[0]
        arguments = {"threadId": conversation, "prompt": "1"}
        answer = await result(client, "tools/call", name="codex-reply", arguments=arguments, task={})
        second = answer["task"]
        await client.approval_request()
    async with LocalServer(home, store=store) as server:
        later = await server.client()
        assert await get(later, first) == done
        assert await result(later, "tasks/result", taskId=first["taskId"]) == before
        waiting = later.request("tasks/result", {"taskId": second["taskId"]})
        await later.approval_request()
        assert (await get(later, second))["status"] == "input_required"
        assert (await result(later, "tasks/cancel", taskId=second["taskId"]))["status"] == "cancelled"

        assert (await later.answer_to(waiting))["result"]["structuredContent"]["reason"] == "interrupted"


@pytest.mark.promises("tasks.list")
async def test_the_list_has_the_last_turn_of_each_conversation(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        await server.create()
        tasks = [await start_task(client, "0", home) for _ in range(21)]
        for task in tasks:
            await result(client, "tasks/result", taskId=task["taskId"])
        first = await result(client, "tasks/list")
        second = await result(client, "tasks/list", cursor=first["nextCursor"])

        found = [one["taskId"] for page in (first, second) for one in page["tasks"]]
        assert sorted(found) == sorted(task["taskId"] for task in tasks)
        assert "nextCursor" not in second
        assert {one["status"] for one in first["tasks"]} == {"completed"}


@pytest.mark.promises("tasks.unknown", "tasks.access")
async def test_role_and_conversation_are_checked(home: str) -> None:
    async with LocalServer(home) as server:
        client, other = await server.client(), await server.create()
        task = await start_task(client, "1", home)
        await client.approval_request()
        conversation = task["taskId"].partition(".")[0]
        bound = await server.client(principal=Principal(name="a", role=Role.ADMIN, conversation=other.id))
        observer = await server.client(principal=Principal(name="b", role=Role.OBSERVER))

        unknown = (-32602, "unknown_task")
        for task_id in ("", "x", f"{conversation}.1", f"{conversation}.999999", f"{uuid4()}.2", conversation):
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                assert await result(client, method, taskId=task_id) == unknown, (method, task_id)
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert await result(bound, method, taskId=task["taskId"]) == unknown
        assert await result(bound, "tasks/list") == {"tasks": []}
        assert (await get(observer, task))["status"] == "input_required"
        assert await result(observer, "tasks/cancel", taskId=task["taskId"]) == (-32600, "role_too_low")


@pytest.mark.promises("tasks.create", "tasks.older")
async def test_only_some_tools_and_only_newer_clients_have_tasks(home: str) -> None:
    async with LocalServer(home) as server:
        client, old = await server.client(), await server.client(version=PLAIN_VERSION, capabilities={})
        other = await result(client, "tools/call", name="conversationsList", arguments={}, task={})
        bad = await result(client, "tools/call", name="codex", arguments={"prompt": "0"}, task=1)
        ignored = await old.answer_to(
            old.request("tools/call", {"name": "conversationsList", "arguments": {}, "task": {"ttl": 1}})
        )
        tools = (await result(client, "tools/list"))["tools"]

        assert other == (-32601, "task_not_possible")
        assert bad == (-32602, "invalid_params")
        assert "content" in ignored["result"]
        for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list"):
            answer = await old.answer_to(old.request(method, {"taskId": "x"}))
            assert answer["error"]["code"] == -32601
        assert {one["name"]: one["execution"] for one in tools if "execution" in one} == {
            "codex": {"taskSupport": "optional"},
            "codex-reply": {"taskSupport": "optional"},
        }


@pytest.mark.promises("tasks.create")
async def test_a_call_that_cannot_begin_a_turn_fails_as_without_a_task(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        arguments = {"threadId": str(uuid4()), "prompt": "0"}
        failed = await result(client, "tools/call", name="codex-reply", arguments=arguments, task={})

        assert failed["isError"]
        assert failed["structuredContent"]["code"] == "unknown_conversation"


async def test_a_turn_that_this_process_has_not_received_yet_is_no_task(home: str) -> None:
    async with FollowedTurn(home, does="run a") as two:
        await settle(two.there, "approved")
        await two.first.until(two.there, Phase.IDLE)
        await two.first.send(two.there, "run b")
        await two.first.until(two.there, Phase.ASKING)
        event_id = two.there.state.event_id
        assert event_id is not None

        with pytest.raises(UnknownTask):
            await task_of_turn(two.here, event_id)
        task = await last_task(two.there)
        assert task is not None
        assert (await task_of_turn(two.there, event_id)).id == task.id
