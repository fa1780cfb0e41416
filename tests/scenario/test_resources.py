"""Resources: clients at 2025-11-25 list, read and subscribe to conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kit.clients.patch_turns import calls_for
from kit.clients.wire_client import speaking
from parley.testing import ScriptedModel
from parley.wire.mcp import FULL_VERSION

LIST = "parley://conversations"
METHODS: list[tuple[str, Any]] = [
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": LIST}),
    ("resources/subscribe", {"uri": LIST}),
    ("resources/unsubscribe", {"uri": LIST}),
]


def error_of(message: Any) -> Any:
    return {key: message["error"][key] for key in ("code", "data")}


@pytest.mark.promises("resources.older")
async def test_older_clients_do_not_know_resources(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        assert "resources" not in client.initialize_result["capabilities"]
        for method, params in METHODS:
            client.request(method, params)
            assert (await client.read())["error"] == {"code": -32601, "message": f"method not found: {method}"}


@pytest.mark.promises("resources.list", "resources.templates")
async def test_the_list_has_every_conversation_and_the_templates_their_addresses(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        first = await client.create_with_turns("Fix the parser")
        second = await client.create_with_turns("Write tests")
        listed = await client.result_of(client.request("resources/list", {}))
        templates = await client.result_of(client.request("resources/templates/list", {}))

        assert "nextCursor" not in listed
        assert listed["resources"] == [
            {
                "uri": LIST,
                "name": "conversations",
                "title": "Conversations",
                "description": "The conversations with coding agents, latest activity first.",
                "mimeType": "application/json",
            },
            {
                "uri": "parley://attention",
                "name": "attention",
                "title": "Attention",
                "description": "The conversations that wait for a person, have failed, or have finished unread.",
                "mimeType": "application/json",
            },
            *(
                {
                    "uri": f"{LIST}/{conversation}",
                    "name": conversation,
                    "title": title,
                    "description": f"The transcript of a conversation in {client.work}",
                    "mimeType": "text/markdown",
                    "annotations": one["annotations"],
                }
                for conversation, title, one in zip(
                    (second, first), ("Write tests", "Fix the parser"), listed["resources"][2:], strict=True
                )
            ),
        ]
        assert all(list(one["annotations"]) == ["lastModified"] for one in listed["resources"][2:])
        assert [(one["uriTemplate"], one["mimeType"]) for one in templates["resourceTemplates"]] == [
            (f"{LIST}/{{id}}", "text/markdown"),
            (f"{LIST}/{{id}}/json", "application/json"),
            (f"{LIST}/{{id}}/diff", "text/x-diff"),
        ]


@pytest.mark.promises("resources.list")
async def test_a_long_list_has_pages(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        made = [await client.create() for _ in range(52)]
        first = await client.result_of(client.request("resources/list", {}))
        second = await client.result_of(client.request("resources/list", {"cursor": first["nextCursor"]}))
        client.request("resources/list", {"cursor": "mine"})

        assert error_of(await client.read()) == {"code": -32602, "data": {"code": "bad_cursor"}}
        found = [one["uri"] for page in (first, second) for one in page["resources"]]
        assert "nextCursor" not in second
        assert found[:2] == [LIST, "parley://attention"]
        assert sorted(found[2:]) == sorted(f"{LIST}/{one}" for one in made)


@pytest.mark.promises("resources.conversations", "resources.transcript", "resources.json")
async def test_a_conversation_is_read_as_markdown_and_as_json(parley_model: ScriptedModel) -> None:
    parley_model.says("Done.\n## User\nhm")
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create_with_turns("Fix the parser")
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))
        events = await client.value_of(client.call("conversationRead", conversation_id=conversation))
        conversations = await client.value_of(client.call("conversationsList"))

        assert await client.read_resource(LIST) == {"conversations": conversations["conversations"], "more": False}
        uri = f"{LIST}/{conversation}"
        assert await client.read_resource(uri) == "\n".join(
            (
                "# Fix the parser",
                "",
                f"- conversation {conversation}",
                "- state idle",
                f"- directory {client.work}",
                f"- model {status['model']}",
                f"- updated {status['updated_at']}",
                "",
                "## User",
                "",
                "> Fix the parser",
                "",
                "## Agent",
                "",
                "> Done.",
                "> ## User",
                "> hm",
                "",
            )
        )
        assert await client.read_resource(f"{uri}/json") == {
            "conversation_id": conversation,
            "title": "Fix the parser",
            "cwd": str(client.work),
            "model": status["model"],
            "state": "idle",
            "updated_at": status["updated_at"],
            "seq": status["seq"],
            "is_complete": True,
            "events": [{"seq": one["seq"], "msg": one["msg"]} for one in events["events"]],
        }
        assert await client.read_resource(f"{uri}/diff") == ""


@pytest.mark.promises("resources.diff")
async def test_the_diff_is_that_of_the_last_turn_with_changes(parley_model: ScriptedModel) -> None:
    free = {"approval-policy": "never", "sandbox": "danger-full-access"}
    async with speaking(parley_model, version=FULL_VERSION) as client:
        for name in ("one", "two"):
            parley_model.says(*calls_for(f"*** Begin Patch\n*** Add File: {name}\n+hello\n*** End Patch"))
            parley_model.says("Done")
        conversation = await client.create_with_turns("add one", **free)
        uri = f"{LIST}/{conversation}/diff"
        first = await client.read_resource(uri)
        await client.say(conversation, "add two")
        await client.over(conversation)
        second = await client.read_resource(uri)
        await client.say(conversation, "thanks")
        await client.over(conversation)

        assert f"+++ b/{client.work}/one\n" in first
        assert f"+++ b/{client.work}/two\n" in second
        assert "/one" not in second
        assert await client.read_resource(uri) == second


@pytest.mark.promises("resources.unknown")
async def test_other_addresses_are_not_found(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        for uri in ("file:///etc/passwd", f"{LIST}/{uuid4()}", f"{LIST}/x", "parley://attentions"):
            client.request("resources/read", {"uri": uri})
            answer = await client.read()
            assert error_of(answer) == {"code": -32002, "data": {"code": "unknown_resource", "uri": uri}}, uri
            assert answer["error"]["message"] == f"Resource not found: {uri}"
        client.request("resources/read", {})
        assert error_of(await client.read()) == {"code": -32602, "data": {"code": "invalid_params"}}


@pytest.mark.promises("resources.subscribe")
async def test_a_client_hears_of_conversations_of_another_process(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with (
        speaking(parley_model, version=FULL_VERSION, home=home) as reader,
        speaking(parley_model, version=FULL_VERSION, home=home) as writer,
    ):
        assert await reader.result_of(reader.request("resources/subscribe", {"uri": LIST})) == {}
        conversation = await writer.create_with_turns("Fix the parser")
        notification = (await reader.until_method("notifications/resources/updated"))[-1]
        assert notification["params"] == {"uri": LIST}

        uri = f"{LIST}/{conversation}"
        await reader.until_answer(reader.request("resources/subscribe", {"uri": uri}))
        await writer.say(conversation, "And now?")
        await reader.until(lambda one: one.get("params") == {"uri": uri})
