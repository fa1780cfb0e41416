"""The additions to MCP that a client sees depend only on the protocol version that the client negotiated."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types of its own

from kit.clients.messages import (
    CAPABILITIES,
    EITHER_API,
    TASK_STARTED,
    agent_message,
    answered,
    remains,
    task_complete,
    turn_value,
    user_message,
)
from kit.clients.requests import ALL_TOOL_NAMES, TOOL_NAMES
from kit.clients.shell_turns import shell
from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.version import __version__
from parley.wire.mcp import FULL_VERSION

OLDER: Final = ("2025-06-18", "2025-03-26", "2024-11-05")

either_api = pytest.mark.parametrize("api", EITHER_API)
all_versions = pytest.mark.parametrize(
    "version", [FULL_VERSION, OLDER[0], *(pytest.param(each, marks=pytest.mark.long) for each in OLDER[1:])]
)

MESSAGE: Final = "0d9a1b8e-6a53-49cb-bd0f-6a3a1a1f6a01"


async def tools_of(client: WireClient) -> list[Any]:
    result = await client.result_of(client.request("tools/list", {}))
    assert list(result) == ["tools"]
    return list(result["tools"])


def configured(request: int, conversation: str) -> Any:
    event = {
        "type": "session_configured",
        "session_id": conversation,
        "model": MODEL,
        "history_log_id": 0,
        "history_entry_count": 0,
    }
    return {"_meta": {"requestId": request}, "id": "0", "msg": event}


# --- initialize and tools/list ---------------------------------------------------------


@all_versions
async def test_only_the_newest_revision_has_instructions_annotations_and_output_schemas(
    parley_model: ScriptedModel, version: str
) -> None:
    async with speaking(parley_model, version=version) as client:
        instructions = client.initialize_result.get("instructions", "")
        tools = await tools_of(client)

        full = version == FULL_VERSION
        assert client.initialize_result == {
            "protocolVersion": version,
            "capabilities": CAPABILITIES if full else {"tools": {"listChanged": True}},
            "serverInfo": {"name": "parley", "title": "Parley", "version": __version__},
            **({"instructions": instructions} if full else {}),
        }
        assert bool(instructions) == full
        more = {"outputSchema", "annotations"} if full else set()
        assert [tool["name"] for tool in tools] == (ALL_TOOL_NAMES if full else TOOL_NAMES)
        assert [set(tool) - {"execution"} for tool in tools] == [
            {"name", "title", "description", "inputSchema"} | more
        ] * len(tools)
        assert [tool["name"] for tool in tools if "execution" in tool] == (["codex", "codex-reply"] if full else [])


@pytest.mark.promises("versions.plain", "versions.full")
async def test_the_additions_to_a_tool_are_all_that_differs(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as plain, speaking(parley_model, version=FULL_VERSION) as full:
        before, after = await tools_of(plain), await tools_of(full)

        added = ("outputSchema", "annotations", "execution")
        for name, required in {
            "conversationCreate": [["prompt", "model", "cwd"], []],  # `cwd` or `repository`
            "codex-reply": [["sessionId", "prompt"], ["threadId", "prompt"]],
        }.items():
            place = [tool["name"] for tool in before].index(name)
            found = [tools.pop(place)["inputSchema"].get("required", []) for tools in (before, after)]
            assert found == required
        send = [tool["name"] for tool in before].index("conversationSendMessage")
        for argument in ("delivery", "output_schema"):
            del after[send]["inputSchema"]["properties"][argument]
        for name, arguments in {
            "codex": ("repository",),
            "conversationRead": ("before", "times"),
            "conversationStream": ("last", "exclusive"),
        }.items():
            (properties,) = [tool["inputSchema"]["properties"] for tool in after if tool["name"] == name]
            for argument in arguments:
                del properties[argument]
        common = [tool for tool in after if tool["name"] in TOOL_NAMES]
        assert [{key: tool[key] for key in tool if key not in added} for tool in common] == before


async def test_annotations_say_which_tools_only_look_and_all_schemas_are_valid(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        tools = await tools_of(client)

        assert {tool["name"] for tool in tools if tool["annotations"]["readOnlyHint"]} == {
            "conversationStream",
            "conversationsList",
            "conversationRead",
            "conversationSearch",
            "conversationStatus",
            "approvalsList",
            "attentionList",
            "queueList",
            "settingsList",
        }
        for tool in tools:
            for schema in (tool["inputSchema"], tool["outputSchema"]):
                Draft202012Validator.check_schema(schema)
                assert schema["type"] == "object"


# --- results ---------------------------------------------------------------------------


def typed(message: str, code: str) -> dict[str, str]:
    """Return the structured content of a failure at 2025-11-25."""
    return {"status": "error", "message": message, "code": code}


@pytest.mark.promises("versions.full")
@either_api
async def test_every_result_of_every_tool_and_every_typed_failure_fits_its_output_schema(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, version=FULL_VERSION) as client:
        schemas = {tool["name"]: Draft202012Validator(tool["outputSchema"]) for tool in await tools_of(client)}
        checked: list[str] = []

        async def use(tool: str, **arguments: Any) -> Any:
            answer = (await client.until_answer(client.call(tool, **arguments)))[-1]
            value = answer["result"]["structuredContent"]
            schemas[tool].validate(value)
            checked.append(tool)
            return value

        session = (await use("codex", prompt="go"))["sessionId"]
        await use("codex-reply", sessionId=session, prompt="go on")
        created = await use("conversationCreate", prompt="", model=MODEL, cwd=str(client.raw.work))
        its = {"conversation_id": created["conversation_id"]}
        await use("conversationStatus", **its)
        await use("conversationRead", **its)
        parley_model.says("Wait ", HOLD, "a moment")
        await use("conversationStream", **its)
        await use("conversationSendMessage", **its, content=[{"type": "text", "text": "go"}])
        await client.until(lambda message: message.get("method") == "agent_message_delta")
        assert (await use("conversationRead", **its))["open"] != []
        assert (await use("conversationStatus", **its))["owner"] is not None
        await use("conversationsList", limit=1)
        assert len((await use("conversationSearch", text="GO", limit=1))["messages"]) == 1
        await use("settingsList")
        await use("conversationInterrupt", **its)
        await use("conversationsList")
        await use("conversationStatus", conversation_id=session)
        parley_model.fails(400, body="no")
        assert (await use("codex-reply", sessionId=session, prompt="fail"))["message"] == (
            "unexpected status 400 Bad Request: no"
        )

        careful = {"approval_policy": "untrusted", "sandbox": "danger-full-access"}
        asks = await use("conversationCreate", prompt="", model=MODEL, cwd=str(client.raw.work), **careful)
        its = {"conversation_id": asks["conversation_id"]}
        patch = "*** Begin Patch\n*** Add File: a\n+a\n*** End Patch"
        parley_model.says(shell("c1", "touch", "b"), shell("c2", "apply_patch", patch))
        await use("conversationSendMessage", **its, content=[{"type": "text", "text": "go"}])
        answer: dict[str, Any] = {}
        for kind in ("exec", "patch"):
            while not (waiting := (await use("approvalsList"))["approvals"]):
                pass
            assert (await use("conversationStatus", **its))["questions"] == waiting
            assert [one["kind"] for one in waiting] == [kind]
            answer = {"approval_id": waiting[0]["approval_id"], "decision": "denied"}
            await use("approvalAnswer", **answer)

        await use("conversationRename", conversation_id=session, title="Another name")
        await use("conversationArchive", conversation_id=session)
        forked = await use("conversationFork", conversation_id=session)
        await use("conversationDelete", **forked)

        nobody = {"conversation_id": "67e55044-10b1-426f-9247-bb680e5fe0c8"}
        failures = [
            await use("conversationCreate", prompt="", model=MODEL, cwd=".", profile="nope"),
            await use("conversationSendMessage", **nobody, content=[{"type": "text", "text": "go"}]),
            await use("conversationRead", **nobody),
            await use("conversationSearch", **nobody, text="go"),
            await use("conversationInterrupt", **nobody),
            await use("conversationContinue", **nobody),
            await use("conversationCompact", **nobody),
            await use("conversationStatus", **nobody),
            await use("conversationRename", **nobody, title="Another name"),
            await use("conversationArchive", **nobody),
            await use("conversationDelete", **nobody),
            await use("conversationFork", **nobody),
            await use("conversationMarkRead", **nobody, seq=1),
            await use("queueList", **nobody),
            await use("queueEdit", **nobody, message_id=str(uuid4()), content=[{"type": "text", "text": "go"}]),
            await use("queueRemove", **nobody, message_id=str(uuid4())),
            await use("queueResume", **nobody),
            await use("approvalsList", **nobody),
            await use("approvalAnswer", **answer),
            await use("codex-reply", sessionId=nobody["conversation_id"], prompt="go"),
            await use("conversationStream", **nobody),
            await use("conversationsList", cursor="?"),
            await use("attentionList", cursor="?"),
        ]

        (settled_at,) = [one.get("settled_at") for one in failures if "settled_at" in one]
        facts = {"decision": "denied", "by": "tool", "principal": "local", "settled_at": settled_at}
        assert failures == [
            {"message": "Failed to load config: config profile `nope` not found", "code": "profile_not_found"},
            typed("Session does not exist", "unknown_conversation"),
            *[typed("Conversation does not exist", "unknown_conversation")] * 16,
            {**typed("Question is settled: denied by local (tool)", "approval_settled"), **facts},
            typed(f"Session not found for session_id: {nobody['conversation_id']}", "unknown_conversation"),
            typed("Conversation does not exist", "unknown_conversation"),
            typed(
                "Failed to parse arguments for conversationsList: cursor was not issued by this server",
                "bad_cursor",
            ),
            typed(
                "Failed to parse arguments for attentionList: cursor was not issued by this server", "bad_cursor"
            ),
        ]
        assert set(checked) == set(ALL_TOOL_NAMES)


@pytest.mark.promises("versions.plain", "versions.full", "codex.result")
async def test_codex_has_structured_content_only_for_the_newest_revision(parley_model: ScriptedModel) -> None:
    async with (
        speaking(parley_model) as plain,
        speaking(parley_model, version=FULL_VERSION) as full,
    ):
        plain_call, full_call = plain.call("codex", prompt="go"), full.call("codex", prompt="go")
        first, *_, plain_answer = await plain.until_answer(plain_call)
        assert first["params"] == configured(plain_call, first["params"]["msg"]["session_id"])
        first, *_, full_answer = await full.until_answer(full_call)
        session = first["params"]["msg"]["session_id"]

        content = [{"type": "text", "text": "Done"}]
        assert plain_answer == {"jsonrpc": "2.0", "id": plain_call, "result": {"content": content}}
        assert full_answer == {
            "jsonrpc": "2.0",
            "id": full_call,
            "result": {"content": content, "structuredContent": turn_value(session, "Done")},
        }


async def test_a_failed_codex_call_has_structured_content_for_the_newest_revision_too(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as plain, speaking(parley_model, version=FULL_VERSION) as full:
        answers = []
        for client in (plain, full):
            parley_model.fails(400, body="no")
            call = client.call("codex", prompt="go")
            first, *_, answer = await client.until_answer(call)
            answers.append((first["params"]["msg"]["session_id"], answer["result"]))

        text = "unexpected status 400 Bad Request: no"
        failure = {"error": text, "content": [{"type": "text", "text": text}], "isError": True}
        (_, plain_result), (session, full_result) = answers
        assert plain_result == failure
        assert full_result == {
            **failure,
            "structuredContent": turn_value(session, text, "failed", "unexpected_status"),
        }


@pytest.mark.promises("send.result", "versions.plain", "versions.full")
@pytest.mark.parametrize("version", [FULL_VERSION, "2025-06-18"])
async def test_the_answer_to_a_send_has_the_messages_id_only_for_the_newest_revision(
    parley_model: ScriptedModel, version: str
) -> None:
    async with speaking(parley_model, version=version) as client:
        conversation = await client.create()
        given = client.message(conversation, "one", message_id=MESSAGE)
        given_answer = await client.read()
        made = client.message(conversation, "two")
        made_answer = await client.read()

        if version == FULL_VERSION:
            message_id = made_answer["result"]["structuredContent"]["message_id"]
            assert str(UUID(message_id)) == message_id != MESSAGE
            assert given_answer == answered(given, {"status": "ok", "message_id": MESSAGE})
            assert made_answer == answered(made, {"status": "ok", "message_id": message_id})
        else:
            assert given_answer == answered(given, {"status": "ok"})
            assert made_answer == answered(made, {"status": "ok"})


# --- events ----------------------------------------------------------------------------


@pytest.mark.promises("versions.plain")
@pytest.mark.parametrize("version", [OLDER[0], OLDER[-1]])
async def test_older_clients_are_not_sent_messages_of_the_user(parley_model: ScriptedModel, version: str) -> None:
    async with speaking(parley_model, version=version) as client:
        conversation = await client.create()
        await client.open_stream(conversation, event_meta=True)
        await client.say(conversation, "go", message_id=MESSAGE)
        seen = await client.until_method("task_complete")
        client.stream(conversation)
        snapshot = (await client.take(3))[2]
        page = await client.value_of(client.call("conversationRead", conversation_id=conversation))
        call = client.call("codex-reply", sessionId=conversation, prompt="again")
        received = await client.until_answer(call)

        left = remains("chat", "Done")
        assert [one["params"]["msg"] for one in seen if "seq" in one["params"]["_meta"]] == left
        assert [one["msg"] for one in snapshot["params"]["initial_state"]["events"]] == left
        assert [one["msg"] for one in page["events"]] == left
        assert {message["method"] for message in received if "method" in message} == {
            "codex/event",
            "task_started",
            "agent_message_delta",
            "agent_message",
            "task_complete",
        }


@pytest.mark.promises("versions.full")
async def test_the_newest_clients_are_sent_messages_of_the_user_in_order(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        parley_model.says("One", HOLD)
        parley_model.says("Two")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "first", message_id=MESSAGE)
        await parley_model.wait_until_held()
        seen = await client.take(3)
        joined = str(uuid4())
        client.message(conversation, "second", message_id=joined)
        seen += [message for message in await client.take(2) if "method" in message]
        parley_model.release()
        seen += await client.until_method("task_complete")

        assert [one["params"]["msg"] for one in seen if "seq" in one["params"]["_meta"]] == [
            TASK_STARTED,
            user_message("first", MESSAGE),
            user_message("second", joined),
            agent_message("One"),
            agent_message("Two"),
            task_complete("Two"),
        ]


async def test_the_newest_clients_hear_messages_of_the_user_from_a_codex_call_too(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        call = client.call("codex", prompt="go")
        *received, _ = await client.until_answer(call)
        events = [message["params"] for message in received if message["method"] == "codex/event"]

        session = events[0]["msg"]["session_id"]
        said = events[2]["msg"]["message_id"]
        assert events[0] == configured(call, session)
        assert events[1:] == [
            {"_meta": {"requestId": call}, "id": str(call), "msg": event}
            for event in (
                TASK_STARTED,
                user_message("go", said),
                {"type": "agent_message_delta", "delta": "Done"},
                agent_message("Done"),
                task_complete("Done"),
            )
        ]
        # Each event is sent a second time under its own name, with the same parameters.
        assert received[1::2] == [{**one, "method": one["params"]["msg"]["type"]} for one in received[::2]]


@pytest.mark.promises("stream.meta")
@pytest.mark.parametrize("version", ["2025-06-18", FULL_VERSION])
async def test_events_have_positions_by_revision_unless_the_client_says_otherwise(
    parley_model: ScriptedModel, version: str
) -> None:
    async with speaking(parley_model, version=version) as client:
        for asked in (None, False, True):
            positions = version == FULL_VERSION if asked is None else asked
            conversation = await client.create()
            stream, before = await client.open_stream(conversation, event_meta=asked)
            await client.say(conversation, "go")
            seen = await client.until_method("task_complete")
            client.cancel(stream)
            stream, after = await client.open_stream(conversation, event_meta=asked)
            client.cancel(stream)
            last = await client.value_of(client.call("conversationStatus", conversation_id=conversation))

            name = {"conversationId": conversation}
            one, *rest = after["params"]["initial_state"]["events"]
            assert before["params"]["_meta"] == ({**name, "seq": 1} if positions else name)
            assert after["params"]["_meta"] == ({**name, "seq": last["seq"]} if positions else name)
            assert {tuple(message["params"]) for message in seen} == {("_meta", "msg") if positions else ("msg",)}
            assert {tuple(event) for event in (one, *rest)} == {("_meta", "msg") if positions else ("msg",)}
            if positions:
                assert seen[0]["params"]["_meta"] == {**name, "seq": one["_meta"]["seq"]}


# --- progress --------------------------------------------------------------------------


@pytest.mark.promises("codex.progress")
@pytest.mark.parametrize(("version", "token"), [("2025-06-18", 7), ("2024-11-05", "a token")])
async def test_a_codex_call_of_an_older_client_reports_each_event_that_has_a_position(
    parley_model: ScriptedModel, version: str, token: str | int
) -> None:
    async with speaking(parley_model, version=version) as client:
        params = {"name": "codex", "arguments": {"prompt": "go"}, "_meta": {"progressToken": token}}
        call = client.request("tools/call", params)
        *received, _ = await client.until_answer(call)
        progress = [message["params"] for message in received if message["method"] == "notifications/progress"]

        events = ["task_started", "agent_message", "task_complete"]
        assert progress == [
            {"progressToken": token, "progress": number, "message": event}
            for number, event in enumerate(events, start=1)
        ]


async def test_without_a_progress_token_no_progress_is_reported(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        received = await client.until_answer(client.call("codex", prompt="go"))

        assert [message for message in received if message.get("method") == "notifications/progress"] == []
