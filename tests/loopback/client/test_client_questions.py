"""What a client does when the server asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from parley.client import Answer, Client, Question
from parley.wire.elicitation import ElicitationAnswer

StartPeer = Callable[..., AbstractAsyncContextManager[Client]]

QUESTION = {
    "message": "Allow Codex to run `ls`?",
    "requestedSchema": {"type": "object", "properties": {}},
    "codex_elicitation": "exec-approval",
    "codex_mcp_tool_call_id": "1",
    "codex_event_id": "1",
    "codex_call_id": "call1",
    "codex_command": ["ls"],
    "codex_cwd": "/project",
}

ASKED = [{"id": 7, "method": "elicitation/create", "params": QUESTION}, {"id": "$id", "result": {}}]


async def answer_to_question(client: Client) -> Any:
    """What the peer was told on its request 7, once it was told."""
    while True:
        messages: list[Any] = json.loads(await client.request("test/received"))
        for message in messages:
            if message.get("id") == 7 and "method" not in message:
                return {key: value for key, value in message.items() if key not in ("jsonrpc", "id")}


async def test_a_word_is_answered_as_a_decision(peer: StartPeer) -> None:
    asked: list[Question] = []

    def approve(question: Question) -> Answer:
        asked.append(question)
        return "approved"

    async with asyncio.timeout(90), peer({"ping": ASKED}, on_question=approve) as client:
        await client.ping()

        assert await answer_to_question(client) == {"result": {"decision": "approved"}}
        assert [(one.codex_elicitation, one.codex_command) for one in asked] == [("exec-approval", ("ls",))]


async def test_a_whole_answer_may_take_its_time_and_go_out_as_an_action(peer: StartPeer) -> None:
    async def decline(question: Question) -> Answer:
        await asyncio.sleep(0)
        return ElicitationAnswer(action="decline", reason="not now")

    async with asyncio.timeout(90), peer({"ping": ASKED}, on_question=decline) as client:
        await client.ping()

        assert await answer_to_question(client) == {"result": {"action": "decline", "reason": "not now"}}


async def test_a_callback_that_fails_answers_an_error_and_the_client_goes_on(peer: StartPeer) -> None:
    def fail(question: Question) -> Answer:
        raise ValueError("no idea")

    async with asyncio.timeout(90), peer({"ping": ASKED}, on_question=fail) as client:
        await client.ping()

        assert await answer_to_question(client) == {
            "error": {"code": -32603, "message": "the client could not answer"}
        }
        await client.ping()


async def test_without_a_callback_there_is_no_such_method(peer: StartPeer) -> None:
    async with asyncio.timeout(90), peer({"ping": ASKED}) as client:
        await client.ping()

        assert await answer_to_question(client) == {
            "error": {"code": -32601, "message": "no method elicitation/create"}
        }


async def test_a_question_that_cannot_be_read_is_refused(peer: StartPeer) -> None:
    script = {"ping": [{"id": 7, "method": "elicitation/create", "params": {}}, {"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script, on_question=lambda _: "approved") as client:
        await client.ping()

        assert (await answer_to_question(client))["error"]["code"] == -32602


async def test_a_server_may_ping_too(peer: StartPeer) -> None:
    script = {"ping": [{"id": 7, "method": "ping"}, {"id": "$id", "result": {}}]}
    async with asyncio.timeout(90), peer(script) as client:
        await client.ping()

        assert await answer_to_question(client) == {"result": {}}


async def test_a_question_that_is_settled_elsewhere_needs_no_answer(peer: StartPeer) -> None:
    asked, dropped = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(question: Question) -> Answer:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()
        raise AssertionError

    script = {
        "ping": ASKED,
        "settle": [
            {"method": "notifications/cancelled", "params": {"requestId": 7}},
            {"id": "$id", "result": {}},
        ],
    }
    async with asyncio.timeout(90), peer(script, on_question=wait_for_ever) as client:
        await client.ping()
        await asked.wait()
        await client.request("settle")
        await dropped.wait()

        messages: list[Any] = json.loads(await client.request("test/received"))
        assert [message for message in messages if message.get("id") == 7] == []


async def test_a_question_that_is_open_at_the_end_does_not_outlive_the_client(peer: StartPeer) -> None:
    asked = asyncio.Event()

    async def wait_for_ever(question: Question) -> Answer:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(90), peer({"ping": ASKED}, on_question=wait_for_ever) as client:
        await client.ping()
        await asked.wait()


@pytest.mark.parametrize(
    ("on_question", "declared"), [(None, {}), (lambda _: "approved", {"elicitation": {}})], ids=["no", "yes"]
)
async def test_elicitation_is_declared_where_there_is_a_callback(
    peer: StartPeer, on_question: Callable[[Question], Answer] | None, declared: dict[str, Any]
) -> None:
    async with asyncio.timeout(90), peer({}, on_question=on_question) as client:
        handshake, *_ = json.loads(await client.request("test/received"))

    assert handshake["params"]["capabilities"] == declared
