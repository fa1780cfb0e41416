"""Prompts, and completion of their arguments."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from kit.servers.local_server import LocalClient, LocalServer
from parley.server.completion import MAX_VALUES
from parley.server.context import Principal, Role
from parley.wire.mcp import PLAIN_VERSION

TEMPLATE = {"type": "ref/resource", "uri": "parley://conversations/{id}/diff"}
REVIEW = {"type": "ref/prompt", "name": "review-changes"}


async def result(client: LocalClient, method: str, **params: Any) -> Any:
    answer = await client.answer_to(client.request(method, params))
    return answer["result"] if "result" in answer else answer["error"]["code"]


async def values(client: LocalClient, ref: Any, name: str, value: str) -> Any:
    answer = await result(client, "completion/complete", ref=ref, argument={"name": name, "value": value})
    return answer["completion"] if isinstance(answer, dict) else answer


@pytest.mark.promises("prompts.older")
async def test_older_clients_know_neither_prompts_nor_completion(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client(version=PLAIN_VERSION)
        assert await result(client, "prompts/list") == -32601
        assert await result(client, "prompts/get", name="plan") == -32601
        assert await values(client, REVIEW, "conversation", "") == -32601


@pytest.mark.promises("prompts.list", "prompts.get")
async def test_each_prompt_is_listed_and_has_a_text(home: str) -> None:
    async with LocalServer(home) as server:
        client, conversation = await server.client(), await server.create()
        listed = (await result(client, "prompts/list"))["prompts"]
        plan = await result(client, "prompts/get", name="plan", arguments={"task": "Add a parser"})
        explain = await result(client, "prompts/get", name="explain-project", arguments={"focus": ""})
        review = await result(client, "prompts/get", name="review-changes")
        of_one = await result(
            client, "prompts/get", name="review-changes", arguments={"conversation": conversation.id}
        )

        assert [(one["name"], [(a["name"], a["required"]) for a in one["arguments"]]) for one in listed] == [
            ("review-changes", [("conversation", False)]),
            ("plan", [("task", True)]),
            ("explain-project", [("focus", False)]),
        ]
        assert "Add a parser" in plan["messages"][0]["content"]["text"]
        assert "Concentrate" not in explain["messages"][0]["content"]["text"]
        assert [len(one["messages"]) for one in (plan, explain, review, of_one)] == [1, 1, 1, 2]
        uri = f"parley://conversations/{conversation.id}/diff"
        assert of_one["messages"][1] == {
            "role": "user",
            "content": {"type": "resource", "resource": {"uri": uri, "mimeType": "text/x-diff", "text": ""}},
        }


@pytest.mark.promises("prompts.get")
async def test_what_does_not_fit_a_prompt_is_refused(home: str) -> None:
    async with LocalServer(home) as server:
        client, other = await server.client(), await server.create()
        for name, arguments, code in (
            ("nope", {}, -32602),
            ("plan", {}, -32602),
            ("plan", {"task": ""}, -32602),
            ("plan", {"task": "x", "more": "y"}, -32602),
            ("plan", {"task": 1}, -32602),
            ("review-changes", {"conversation": "x"}, -32002),
            ("review-changes", {"conversation": str(uuid4())}, -32002),
        ):
            assert await result(client, "prompts/get", name=name, arguments=arguments) == code, (name, arguments)
        guest = Principal(name="guest", role=Role.OBSERVER, conversation=(await server.create()).id)
        bound = await server.client(principal=guest)
        of_other = {"conversation": other.id}
        assert await result(bound, "prompts/get", name="review-changes", arguments=of_other) == -32002


@pytest.mark.promises("completion.conversations")
async def test_ids_are_completed_from_their_beginning_and_from_titles(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        one, two = await server.create(), await server.create()
        await client.value_of(client.call("conversationRename", conversation_id=one.id, title="The Parser"))
        guest = Principal(name="guest", role=Role.OBSERVER, conversation=two.id)
        bound = await server.client(principal=guest)

        for ref, name in ((TEMPLATE, "id"), (REVIEW, "conversation")):
            everything = await values(client, ref, name, "")
            assert sorted(everything["values"]) == sorted([one.id, two.id])
            assert (everything["total"], everything["hasMore"]) == (2, False)
            for text in (one.id[:20], one.id, "parser"):
                assert (await values(client, ref, name, text))["values"] == [one.id]
            assert (await values(bound, ref, name, ""))["values"] == [two.id]
            assert await values(bound, ref, name, "parser") == {"values": [], "total": 0, "hasMore": False}
        assert (await values(client, REVIEW, "other", ""))["values"] == []
        assert await values(client, {"type": "ref/prompt", "name": "nope"}, "x", "") == -32602
        assert await values(client, {"type": "ref/resource", "uri": "file:///{id}"}, "id", "") == -32002


@pytest.mark.promises("completion.conversations")
async def test_at_most_a_hundred_values_are_returned(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        for _ in range(MAX_VALUES + 1):
            await server.create()

        found = await values(client, TEMPLATE, "id", "")

        assert (len(found["values"]), found["total"], found["hasMore"]) == (MAX_VALUES, MAX_VALUES + 1, True)
