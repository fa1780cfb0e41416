"""The life of a server, from the first message of a client to the exit."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from kit.clients.messages import CAPABILITIES, turn_value
from kit.clients.requests import (
    EXIT_SECONDS,
    STOPPED,
    TOOL_NAMES,
    codex_pair,
    initialize,
    request,
    result,
    the_rest,
    tool,
)
from parley.testing import HOLD, RawParley, ScriptedModel, check_message
from parley.version import __version__
from parley.wire.jsonrpc import encode

UNKNOWN: Final = "00000000-0000-4000-8000-000000000000"


def refusal(request_id: object, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def plain_failure(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}


def live(event: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": event["type"], "params": {"msg": event}}


def disconnected(conversation: str) -> dict[str, Any]:
    params = {"_meta": {"conversationId": conversation}, "reason": "Server is shutting down"}
    return {"jsonrpc": "2.0", "method": "notifications/stream_disconnected", "params": params}


async def create(raw: RawParley, request_id: object) -> str:
    raw.send(tool(request_id, "conversationCreate", {"prompt": "", "model": "m", "cwd": str(raw.work)}))
    created = await raw.expect(lambda message: message.get("id") == request_id)
    conversation = created["result"]["structuredContent"]["conversation_id"]
    assert isinstance(conversation, str)
    return conversation


# --- the beginning -----------------------------------------------------------------------


@pytest.mark.promises("lifecycle.initialize", "lifecycle.version", "versions.plain")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
async def test_a_known_version_is_echoed_with_nothing_but_the_plain_members(
    parley_model: ScriptedModel, version: str
) -> None:
    async with RawParley(parley_model) as raw:
        raw.send(initialize(0, version=version))

        answer = await raw.read_message()

        assert answer == result(
            0,
            {
                "protocolVersion": version,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "parley", "title": "Parley", "version": __version__},
            },
        )


@pytest.mark.promises("lifecycle.version", "versions.full")
@pytest.mark.parametrize(
    "version", ["2025-11-25", "2031-01-01", pytest.param("1999-01-01", marks=pytest.mark.long), ""]
)
async def test_the_newest_version_and_unknown_ones_get_the_newest_with_instructions(
    parley_model: ScriptedModel, version: str
) -> None:
    async with RawParley(parley_model) as raw:
        raw.send(initialize("a", version=version))

        answer = await raw.read_message()

        instructions = answer["result"].pop("instructions")
        assert answer == result(
            "a",
            {
                "protocolVersion": "2025-11-25",
                "capabilities": CAPABILITIES,
                "serverInfo": {"name": "parley", "title": "Parley", "version": __version__},
            },
        )
        assert instructions.startswith("Parley runs coding agents in conversations")


@pytest.mark.promises("lifecycle.initialize-once")
async def test_a_second_initialize_is_refused_and_changes_nothing(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.send(initialize(0))
        raw.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        raw.send(initialize(4, version="2025-11-25"))
        raw.send(request(5, "tools/list"))
        await raw.read_message()

        assert await raw.read_message() == refusal(4, -32600, "initialize called more than once")
        tools = (await raw.read_message())["result"]["tools"]
        assert {member for one in tools for member in one} == {"name", "title", "description", "inputSchema"}


@pytest.mark.promises("lifecycle.bad-params")
async def test_an_initialize_that_cannot_be_read_is_refused_and_can_be_repeated(
    parley_model: ScriptedModel,
) -> None:
    client = {"name": "x", "version": "1"}
    unfit: list[tuple[object, str]] = [
        (None, "Object missing required field `protocolVersion`"),
        ({"protocolVersion": "2025-06-18", "capabilities": {}}, "Object missing required field `clientInfo`"),
        ({"protocolVersion": "2025-06-18"}, "Object missing required field `capabilities`"),
        (
            {"protocolVersion": 3, "capabilities": {}, "clientInfo": client},
            "Expected `str`, got `int` - at `$.protocolVersion`",
        ),
        (
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x"}},
            "Object missing required field `version` - at `$.clientInfo`",
        ),
        ([], "Expected `object`, got `array`"),
        ("2025-06-18", "Expected `object`, got `str`"),
    ]
    async with RawParley(parley_model) as raw:
        for params, detail in unfit:
            raw.send(request(0, "initialize", params))
            assert await raw.read_message() == refusal(0, -32602, f"invalid params: {detail}")

        raw.send(initialize(0))
        assert (await raw.read_message())["result"]["protocolVersion"] == "2025-06-18"


@pytest.mark.promises("lifecycle.before-initialize")
async def test_requests_before_initialize_are_served(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.send(request(0, "ping"))
        raw.send(request(1, "tools/list"))
        raw.send(tool(2, "codex", {"prompt": "go", "cwd": str(raw.work)}))

        assert await raw.read_message() == result(0, {})
        assert [one["name"] for one in (await raw.read_message())["result"]["tools"]] == TOOL_NAMES
        configured = await raw.read_message()
        session = configured["params"]["msg"]["session_id"]
        event = {
            "type": "session_configured",
            "session_id": session,
            "model": "scripted-model",
            "history_log_id": 0,
            "history_entry_count": 0,
        }
        params = {"_meta": {"requestId": 2}, "id": "0", "msg": event}
        assert configured == {"jsonrpc": "2.0", "method": "codex/event", "params": params}
        assert await raw.read_message() == {"jsonrpc": "2.0", "method": "session_configured", "params": params}
        assert [await raw.read_message() for _ in range(9)] == [
            *codex_pair(2, {"type": "task_started"}),
            *codex_pair(2, {"type": "agent_message_delta", "delta": "Done"}),
            *codex_pair(2, {"type": "agent_message", "message": "Done"}),
            *codex_pair(2, {"type": "task_complete", "last_agent_message": "Done"}),
            result(2, {"content": [{"type": "text", "text": "Done"}]}),
        ]


@pytest.mark.promises("lifecycle.tools-list", "versions.plain", "versions.full")
async def test_the_list_of_tools_is_the_same_for_every_client_but_for_what_the_newest_adds(
    parley_model: ScriptedModel,
) -> None:
    listed: list[list[dict[str, Any]]] = []
    for version in ("2025-06-18", "2025-11-25"):
        async with RawParley(parley_model) as raw:
            raw.send(initialize(0, version=version))
            raw.send(request(1, "tools/list", {}))
            raw.send(request(2, "tools/list"))
            await raw.read_message()
            first, second = (await raw.read_message())["result"], (await raw.read_message())["result"]
            for frame in raw.frames:
                check_message(frame, version=version)
            assert first == second
            assert list(first) == ["tools"]
            listed.append(first["tools"])

    plain, full = listed
    added = ("outputSchema", "annotations", "execution")
    assert [one["name"] for one in plain] == TOOL_NAMES
    for name, required in {
        "conversationCreate": [["prompt", "model", "cwd"], []],
        "codex-reply": [["sessionId", "prompt"], ["threadId", "prompt"]],
    }.items():
        place = [one["name"] for one in plain].index(name)
        assert [one.pop(place)["inputSchema"].get("required", []) for one in (plain, full)] == required
    common = [one for one in full if one["name"] in TOOL_NAMES]
    for name, arguments in {
        "codex": ["repository"],
        "conversationSendMessage": ["delivery", "output_schema"],
        "conversationStream": ["last", "exclusive"],
        "conversationRead": ["before", "times"],
    }.items():
        properties = next(one for one in common if one["name"] == name)["inputSchema"]["properties"]
        assert all(properties.pop(argument) for argument in arguments)
    assert [{name: one[name] for name in one if name not in added} for one in common] == plain
    assert all(one["outputSchema"]["type"] == "object" and one["annotations"] for one in full)


@pytest.mark.promises("lifecycle.unknown-method")
async def test_methods_that_are_not_served_are_refused(parley_model: ScriptedModel) -> None:
    unserved = [
        ("no/such", {}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "file:///x"}),
        ("resources/subscribe", {"uri": "file:///x"}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "x"}),
        ("logging/setLevel", {"level": "debug"}),  # only for clients at 2025-11-25
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}},
        ),
        ("server/discover", {}),
        ("notifications/initialized", None),
        ("notifications/cancelled", {"requestId": 1}),
        ("PING", None),
        ("", None),
    ]
    async with RawParley(parley_model) as raw:
        for number, (method, params) in enumerate(unserved):
            raw.send(request(number, method, params))
        raw.send(request("last", "ping"))

        answers = [await raw.read_message() for _ in [*unserved, "last"]]

        assert result("last", {}) in answers
        answers.remove(result("last", {}))
        assert sorted(answers, key=lambda answer: int(answer["id"])) == [
            refusal(number, -32601, f"method not found: {method}") for number, (method, _) in enumerate(unserved)
        ]


@pytest.mark.promises("lifecycle.bad-params")
async def test_a_call_that_names_no_tool_is_refused(parley_model: ScriptedModel) -> None:
    nameless: list[tuple[object, str]] = [
        (None, "Object missing required field `name`"),
        ({}, "Object missing required field `name`"),
        ({"name": 5}, "Expected `str`, got `int` - at `$.name`"),
        ({"name": None, "arguments": {}}, "Expected `str`, got `null` - at `$.name`"),
        ({"arguments": {"prompt": "go"}}, "Object missing required field `name`"),
        ([], "Expected `object`, got `array`"),
    ]
    async with RawParley(parley_model) as raw:
        for params, detail in nameless:
            raw.send(request(10, "tools/call", params))
            assert await raw.read_message() == refusal(10, -32602, f"invalid params: {detail}")


@pytest.mark.promises("tools.unknown", "tools.bad-arguments", "stream.unknown")
async def test_unknown_tools_are_named_and_known_ones_are_not_called_unknown(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.send(initialize(0))
        await raw.read_message()
        conversation = await create(raw, 1)
        listed = {"conversations": [{"conversation_id": conversation, "title": ""}]}
        typed_list = {
            "content": [{"type": "text", "text": encode(listed).decode()}],
            "isError": False,
            "structuredContent": listed,
        }
        started = {"content": [{"type": "text", "text": "{}"}], "isError": False, "structuredContent": {}}
        no_uuid = 'invalid value: string "x", expected a uuid (conversation_id)'
        arguments_failed = "Failed to parse arguments for conversationStream: "

        async def answer_to(name: str, arguments: object = None) -> Any:
            raw.send(tool(2, name, arguments))
            return (await raw.expect(lambda message: message.get("id") == 2))["result"]

        assert await answer_to("nope", {"a": 1}) == plain_failure("Unknown tool 'nope'")
        assert await answer_to("nope") == plain_failure("Unknown tool 'nope'")
        assert await answer_to("") == plain_failure("Unknown tool ''")
        assert await answer_to("Codex", {"prompt": "go"}) == plain_failure("Unknown tool 'Codex'")
        assert await answer_to("conversationsList", {"limit": 5}) == typed_list
        assert await answer_to("conversationsList") == typed_list
        assert await answer_to("conversationStream", {"conversation_id": conversation}) == started
        assert await answer_to("conversationStream", {"conversation_id": UNKNOWN}) == {
            "content": [],
            "isError": True,
        }
        assert await answer_to("conversationStream", {"conversation_id": "x"}) == plain_failure(
            arguments_failed + no_uuid
        )
        assert await answer_to("conversationStream", {}) == plain_failure(
            arguments_failed + "missing field `conversation_id`"
        )


# --- the end -----------------------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.promises("lifecycle.end-of-stdin")
async def test_an_idle_server_ends_when_its_stdin_does(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.send(initialize())
        await raw.read_message()

        raw.close_stdin()

        async with asyncio.timeout(EXIT_SECONDS):
            assert await raw.process.wait() == 0
        assert await the_rest(raw) == []


@pytest.mark.child_process
async def test_a_server_that_was_never_spoken_to_ends_too(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.close_stdin()

        assert await raw.exit_code() == 0
        assert await the_rest(raw) == []
        assert raw.stderr_text() == ""


@pytest.mark.child_process
@pytest.mark.promises("lifecycle.end-of-stdin", "lifecycle.sigterm", "lifecycle.stopped-turn", "turn.one-end")
@pytest.mark.parametrize("how", ["end of stdin", "SIGTERM"])
async def test_running_turns_end_in_order_with_the_server(parley_model: ScriptedModel, how: str) -> None:
    parley_model.says("one", HOLD)
    parley_model.says("two", HOLD)
    async with RawParley(parley_model) as raw:
        raw.send(initialize())
        await raw.read_message()
        conversation, idle = await create(raw, 1), await create(raw, 2)
        for number, one in ((3, conversation), (4, idle)):
            raw.send(tool(number, "conversationStream", {"conversation_id": one}))
            await raw.expect(lambda message: message.get("method") == "notifications/initial_state")
        content = [{"type": "text", "text": "go"}]
        raw.send(tool(5, "conversationSendMessage", {"conversation_id": conversation, "content": content}))
        await raw.expect(lambda message: message.get("method") == "agent_message_delta")
        raw.send(tool(6, "codex", {"prompt": "go"}))
        await raw.expect(lambda message: message.get("method") == "agent_message_delta")
        raw.send(tool(7, "conversationRead", {"conversation_id": idle, "wait_seconds": 50}))
        raw.send(request(8, "ping"))
        assert await raw.read_message() == result(8, {})

        if how == "SIGTERM":
            raw.terminate()
        else:
            raw.close_stdin()
        async with asyncio.timeout(EXIT_SECONDS):
            assert await raw.process.wait() == 0
        said = await the_rest(raw)

        error = {"type": "error", "message": STOPPED}
        nothing_new = {"events": [], "open": [], "seq": 1, "state": "idle"}
        of_the_stream = {**live(error), "params": {"_meta": {"conversationId": conversation}, "msg": error}}
        of_codex = [*codex_pair(6, error), result(6, {"error": STOPPED, **plain_failure(STOPPED)})]
        of_read = {
            "content": [{"type": "text", "text": encode(nothing_new).decode()}],
            "isError": False,
            "structuredContent": nothing_new,
        }
        assert [one for one in said if one in of_codex] == of_codex
        assert said.index(of_the_stream) < said.index(disconnected(conversation))
        expected = [*of_codex, of_the_stream, result(7, of_read), disconnected(conversation), disconnected(idle)]
        assert sorted(map(encode, said)) == sorted(map(encode, expected))


async def test_the_error_of_a_stopped_turn_has_its_session_at_the_newest_version(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("one", HOLD)
    async with RawParley(parley_model) as raw:
        raw.send(initialize(version="2025-11-25"))
        raw.send(tool(1, "codex", {"prompt": "go"}))
        configured = await raw.expect(lambda message: message.get("method") == "session_configured")
        await parley_model.wait_until_held()

        raw.close_stdin()
        answer = await raw.expect(lambda message: message.get("id") == 1)

        session = configured["params"]["msg"]["session_id"]
        value = turn_value(session, STOPPED, "stopped")
        assert answer == result(1, {"error": STOPPED, **plain_failure(STOPPED), "structuredContent": value})


@pytest.mark.child_process
@pytest.mark.promises("framing.one-answer", "lifecycle.end-of-stdin")
async def test_all_requests_before_the_end_of_input_are_answered(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        conversation = await create(raw, "c")
        content = [{"type": "text", "text": "go"}]
        calls: list[tuple[str, object]] = [
            ("codex", {"prompt": "go"}),
            ("codex-reply", {"sessionId": conversation, "prompt": "go"}),
            ("conversationCreate", {"prompt": "", "model": "m", "cwd": "."}),
            ("conversationSendMessage", {"conversation_id": conversation, "content": content}),
            ("conversationStream", {"conversation_id": conversation}),
            ("conversationsList", {}),
            ("conversationRead", {"conversation_id": conversation, "wait_seconds": 50}),
            ("conversationInterrupt", {"conversation_id": conversation}),
            ("conversationStatus", {"conversation_id": conversation}),
            ("conversationStatus", {}),
            ("nope", {}),
        ]
        asked = calls * 10
        raw.write(
            b"".join(
                encode(tool(number, name, arguments)) + b"\n" + encode(request(-1 - number, "ping")) + b"\n"
                for number, (name, arguments) in enumerate(asked)
            )
        )
        raw.close_stdin()

        async with asyncio.timeout(EXIT_SECONDS):
            assert await raw.process.wait() == 0
        said = await the_rest(raw)

        answered = sorted(message["id"] for message in said if "method" not in message)
        assert answered == list(range(-len(asked), len(asked)))
        refused = [message for message in said if "error" in message]
        assert refused == []
