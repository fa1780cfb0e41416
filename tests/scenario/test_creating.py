"""`conversationCreate`, and the state of a new conversation."""

from __future__ import annotations

import pytest

from kit.builders.events import error, task_complete, task_started
from kit.clients.codex_calls import answered as codex_answered
from kit.clients.codex_calls import configured, pairs, shown
from kit.clients.codex_calls import speaking as calling
from kit.clients.messages import answered, live, spoken
from kit.clients.messages import error as error_event
from kit.clients.traces import said
from kit.clients.wire_client import speaking
from parley.testing import ScriptedModel

PROGRAMS = {"docs": "docs-server", "tickets": "/no/such/tickets-server"}

TOOL_SERVERS = "".join(f'[mcp_servers.{name}]\ncommand = "{program}"\n' for name, program in PROGRAMS.items())


def not_started(name: str) -> str:
    why = f"cannot run {PROGRAMS[name]}: No such file or directory (os error 2)"
    return f"MCP client for `{name}` failed to start: {why}"


@pytest.mark.promises("create.result", "create.silent")
async def test_a_new_conversation_is_answered_with_its_id_and_the_model_in_force(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        requests = [
            client.call("conversationCreate", prompt="not used", model=model, cwd="nowhere/to/be/found")
            for model in ("one", "another")
        ]
        answers = await client.take(2)
        ids = [answer["result"]["structuredContent"]["conversation_id"] for answer in answers]

        assert answers == [
            answered(request, {"conversation_id": conversation, "model": model})
            for request, conversation, model in zip(requests, ids, ("one", "another"), strict=True)
        ]
        assert len(set(ids)) == 2
        assert await client.meanwhile() == []
        assert parley_model.requests == []


@pytest.mark.promises("servers.failure")
async def test_a_new_conversation_reports_each_tool_server_that_cannot_start_and_works(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, config=TOOL_SERVERS) as client:
        conversation = await client.create()
        _, snapshot = await client.open_stream(conversation)
        # The answer to `conversationCreate` does not wait for tool servers, so they may fail before or after the
        # start of the stream.
        seen = [event["msg"] for event in snapshot["params"]["initial_state"]["events"]]
        while len(seen) < 2:
            seen.append((await client.read())["params"]["msg"])
        await client.say(conversation, "go")
        turn = await client.until_method("task_complete")

        assert seen == [error_event(not_started(name)) for name in ("docs", "tickets")]
        assert turn == [live(event) for event in spoken("chat", "Done")]


@pytest.mark.promises("servers.failure")
async def test_a_codex_call_reports_failed_tool_servers_directly_after_its_configuration(
    parley_model: ScriptedModel,
) -> None:
    async with calling(parley_model, config=TOOL_SERVERS) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

        assert messages == [
            *configured(1, wire.sessions[-1]),
            *pairs(1, "0", *(error(not_started(name)) for name in ("docs", "tickets"))),
            *pairs(1, "1", task_started(), *shown("chat", *said("Done")), task_complete("Done")),
            codex_answered(1, "Done"),
        ]
