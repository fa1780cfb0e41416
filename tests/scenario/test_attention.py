"""The conversations that need the attention of a person, and read marks: for each principal, over every transport.

Modules: `parley.server.attention`, `parley.server.page_cursors`, `parley.server.tools.attention_list`,
`parley.server.tools.mark_read`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kit.clients.http_client import HttpClient
from kit.clients.modern_client import speaking_modern
from kit.clients.reading import until_state
from kit.clients.requests import request, tool
from kit.clients.shared_home import ASKS
from kit.clients.shell_turns import sh
from kit.clients.wire_client import BaseClient, speaking
from kit.servers.http_server import HttpServer
from parley.client import connect
from parley.testing import HOLD, ScriptedModel
from parley.wire.mcp import FULL_VERSION

ATTENTION = "parley://attention"


async def asking(client: BaseClient, text: str) -> str:
    """Create a conversation with this message, whose turn waits for an approval."""
    conversation = await client.create(**ASKS)
    await client.say(conversation, text)
    await until_state(client, conversation, "asking")
    return conversation


async def attention(client: BaseClient, **arguments: Any) -> list[Any]:
    found = await client.value_of(client.call("attentionList", **arguments))
    assert "next_cursor" not in found
    return list(found["conversations"])


async def unread(client: BaseClient) -> dict[str, bool]:
    found = await client.value_of(client.call("conversationsList"))
    return {one["conversation_id"]: one["unread"] for one in found["conversations"]}


async def mark(client: BaseClient, conversation: str, seq: int) -> Any:
    return await client.value_of(client.call("conversationMarkRead", conversation_id=conversation, seq=seq))


@pytest.mark.promises("attention.list", "attention.waiting", "attention.ended", "versions.full")
async def test_those_that_wait_come_before_those_that_failed_and_those_that_finished(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        parley_model.says("x" * 200, "y" * 200)
        finished = await client.create_with_turns("finish")
        parley_model.fails(400, body="no such model")
        failed = await client.create_with_turns("fail")
        parley_model.says(sh("c1", "touch made"))
        waiting = await asking(client, "wait")
        parley_model.says("Done.")
        again = await client.create_with_turns("finish again")
        await client.create()
        found = await attention(client)
        (approval,) = (await client.value_of(client.call("approvalsList")))["approvals"]
        last = {
            one: (await client.value_of(client.call("conversationRead", conversation_id=one)))["events"][-1]["seq"]
            for one in (finished, failed, again)
        }

        assert [(one["conversation_id"], one["state"], one["title"]) for one in found] == [
            (waiting, "waiting", "wait"),
            (failed, "failed", "fail"),
            (again, "finished", "finish again"),
            (finished, "finished", "finish"),
        ]
        times = [one.pop("since") for one in found]
        assert found == [
            {
                "conversation_id": waiting,
                "title": "wait",
                "cwd": str(client.work),
                "state": "waiting",
                "approval": approval,
            },
            {
                "conversation_id": failed,
                "title": "fail",
                "cwd": str(client.work),
                "state": "failed",
                "reason": "failed",
                "message": "unexpected status 400 Bad Request: no such model",
                "code": "unexpected_status",
                "seq": last[failed],
            },
            {
                "conversation_id": again,
                "title": "finish again",
                "cwd": str(client.work),
                "state": "finished",
                "reason": "done",
                "message": "Done.",
                "seq": last[again],
            },
            {
                "conversation_id": finished,
                "title": "finish",
                "cwd": str(client.work),
                "state": "finished",
                "reason": "done",
                "message": "x" * 200 + "y" * 100,
                "seq": last[finished],
            },
        ]
        assert times[0] == approval["asked_at"]
        assert times[3] <= times[1] <= times[2]


@pytest.mark.promises("attention.list")
async def test_a_new_turn_an_archive_and_a_mark_remove_a_conversation(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        first, second = await client.create_with_turns("one"), await client.create_with_turns("two")
        parley_model.says(sh("c1", "touch made"))
        waiting = await asking(client, "wait")
        for one in (second, waiting):
            await client.value_of(client.call("conversationArchive", conversation_id=one))
        assert [one["conversation_id"] for one in await attention(client)] == [waiting, first]

        parley_model.says(HOLD, "more")
        await client.say(first, "go on")
        await parley_model.wait_until_held()
        assert [one["conversation_id"] for one in await attention(client)] == [waiting]
        await client.value_of(client.call("conversationInterrupt", conversation_id=first))
        parley_model.release()
        await client.over(first)
        (_, found) = await attention(client)
        assert (found["state"], found["reason"], found["message"]) == (
            "finished",
            "interrupted",
            " Turn interrupted",
        )

        assert await mark(client, first, found["seq"]) == {"status": "ok"}
        assert [one["conversation_id"] for one in await attention(client)] == [waiting]
        await client.value_of(client.call("conversationArchive", conversation_id=second, archived=False))
        assert [one["conversation_id"] for one in await attention(client)] == [waiting, second]


@pytest.mark.promises("attention.list")
async def test_a_turn_that_ended_with_its_server_has_failed(parley_model: ScriptedModel, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with speaking(parley_model, version=FULL_VERSION, home=home) as client:
        parley_model.says(HOLD, "lost")
        conversation = await client.create()
        await client.say(conversation, "go")
        await parley_model.wait_until_held()
    async with speaking(parley_model, version=FULL_VERSION, home=home) as client:
        (found,) = await attention(client)

        assert (found["state"], found["reason"]) == ("failed", "stopped")
        assert found["message"] == "Turn interrupted: the server was stopped"


@pytest.mark.promises("attention.pages")
async def test_pages_follow_each_other_over_all_states(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        finished = [await client.create_with_turns(f"finish {number}") for number in range(3)]
        parley_model.fails(400)
        failed = await client.create_with_turns("fail")
        parley_model.says(sh("c1", "touch made"))
        waiting = await asking(client, "wait")
        whole = [one["conversation_id"] for one in await attention(client)]
        assert whole == [waiting, failed, *reversed(finished)]

        for limit in (1, 2, 3):
            pages: list[list[str]] = []
            cursor = None
            while not pages or cursor is not None:
                found = await client.value_of(client.call("attentionList", limit=limit, cursor=cursor))
                pages.append([one["conversation_id"] for one in found["conversations"]])
                cursor = found.get("next_cursor")
            assert [one for page in pages for one in page] == whole
            assert all(len(page) == limit for page in pages[:-1])
            assert pages[-1]
        for cursor in ("mine", "WyJydW5uaW5nIixudWxsXQ=="):
            value = await client.value_of(client.call("attentionList", cursor=cursor))
            assert value["code"] == "bad_cursor"
        assert (await client.value_of(client.call("attentionList", limit=201)))["code"] == "bad_arguments"


@pytest.mark.promises("unread.mark", "list.unread")
async def test_a_mark_moves_forwards_only_and_not_beyond_the_end(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create_with_turns("one")
        assert await unread(client) == {conversation: True}
        ((found),) = await attention(client)
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))

        beyond = await mark(client, conversation, status["seq"] + 1)
        assert (beyond["code"], await unread(client)) == ("position_beyond_end", {conversation: True})
        assert beyond["message"].endswith(
            f"seq is {status['seq'] + 1}, but the conversation ends at {status['seq']}"
        )
        assert (await mark(client, conversation, -1))["code"] == "bad_arguments"
        assert (await mark(client, str(uuid4()), 0))["code"] == "unknown_conversation"
        await mark(client, conversation, found["seq"] - 1)
        assert await unread(client) == {conversation: True}
        await mark(client, conversation, found["seq"])
        await mark(client, conversation, 0)
        assert await unread(client) == {conversation: False}

        await client.value_of(client.call("conversationRename", conversation_id=conversation, title="new"))
        assert await unread(client) == {conversation: False}
        await client.say(conversation, "two")
        await client.over(conversation)
        assert await unread(client) == {conversation: True}


@pytest.mark.promises("unread.principal")
async def test_a_copy_is_read_and_marks_survive_the_server(parley_model: ScriptedModel, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with speaking(parley_model, version=FULL_VERSION, home=home) as client:
        first, second = await client.create_with_turns("one"), await client.create_with_turns("two")
        copy = (await client.value_of(client.call("conversationFork", conversation_id=second)))["conversation_id"]
        await client.value_of(client.call("conversationRename", conversation_id=copy, title="copy"))
        (_, found) = await attention(client)
        await mark(client, first, found["seq"])
    async with speaking(parley_model, version=FULL_VERSION, home=home) as client:
        assert await unread(client) == {first: False, second: True, copy: False}


# --- principals ------------------------------------------------------------------------------


async def listed(client: HttpClient) -> list[str]:
    return [one["conversation_id"] for one in (await client.call("attentionList"))["conversations"]]


async def turn(client: HttpClient, conversation: str) -> int:
    """Run a turn, and return its last position."""
    await client.say(conversation, "go")
    return await until_state(client, conversation, "idle")


@pytest.mark.promises("unread.principal", "attention.access", "roles.bound")
async def test_every_token_has_its_own_marks(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        own = await server.client()
        old, other = await own.create(), await own.create()
        await turn(own, old)
        phone = await server.client(token=await server.create_token("phone", "observer"))
        bound = await server.client(token=await server.create_token("bound", "observer", conversation=old))
        seq = await turn(own, other)
        assert [await listed(one) for one in (own, phone, bound)] == [[other, old], [other], []]

        await phone.call("conversationMarkRead", conversation_id=other, seq=seq)
        assert [await listed(one) for one in (own, phone)] == [[other, old], []]
        await server.revoke_token("phone")
        again = await server.client(token=await server.create_token("phone", "observer"))
        assert await listed(again) == []
        await turn(own, other)
        await turn(own, old)

        assert [await listed(one) for one in (own, again, bound)] == [[old, other], [old, other], [old]]
        reply = await bound.post(tool(1, "conversationMarkRead", {"conversation_id": other, "seq": 1}))
        assert reply.json["result"]["structuredContent"]["code"] == "unknown_conversation"
        read = await bound.post(request(2, "resources/read", {"uri": ATTENTION}))
        text = json.loads(read.json["result"]["contents"][0]["text"])
        assert [one["conversation_id"] for one in text["conversations"]] == [old]


# --- the resource ------------------------------------------------------------------------------


@pytest.mark.promises("resources.attention", "resources.subscribe")
async def test_the_resource_has_the_list_and_its_subscribers_are_notified(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with (
        speaking(parley_model, version=FULL_VERSION, home=home) as reader,
        speaking(parley_model, version=FULL_VERSION, home=home) as writer,
    ):
        assert await reader.result_of(reader.request("resources/subscribe", {"uri": ATTENTION})) == {}
        conversation = await writer.create_with_turns("one")
        notification = (await reader.until_method("notifications/resources/updated"))[-1]
        assert notification["params"] == {"uri": ATTENTION}
        content = await reader.read_resource(ATTENTION)
        items = await attention(writer)
        assert content == {"conversations": items, "more": False}

        await mark(writer, conversation, items[0]["seq"])
        while True:  # a notification may refer to an earlier change
            await reader.until_method("notifications/resources/updated")
            if not (await reader.read_resource(ATTENTION))["conversations"]:
                break


@pytest.mark.promises("modern.listen")
async def test_a_client_at_2026_07_28_listens_to_it(parley_model: ScriptedModel) -> None:
    async with speaking_modern(parley_model, config="[mcp]\nmodern = true\n") as client:
        wanted = {"resourceSubscriptions": [ATTENTION]}
        client.request("subscriptions/listen", {"notifications": wanted})
        acknowledged = await client.read()
        assert acknowledged["params"]["notifications"] == wanted
        client.call("conversationCreate", cwd=str(client.work))

        assert (await client.until_method("notifications/resources/updated"))[-1]["params"]["uri"] == ATTENTION


@pytest.mark.promises("attention.list", "unread.mark")
async def test_the_python_client_lists_and_marks(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with (
        HttpServer(parley_model, tmp_path / "home") as server,
        connect(url=server.url, token=server.token) as client,
    ):
        conversation = await client.create(cwd=server.work)
        await (await conversation.send("go")).result()
        (found,) = (await client.attention(limit=1)).conversations
        assert (found.conversation_id, found.state) == (conversation.id, "finished")
        assert isinstance(found.seq, int)
        await conversation.mark_read(found.seq)

        assert (await client.attention()).conversations == ()
