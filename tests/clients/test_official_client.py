"""The official Python client over stdio: a program that supports MCP and has no code for Parley."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TextIO

import anyio
import pytest
from mcp import Client, ClientSession, MCPDeprecationWarning, MCPError, StdioServerParameters, stdio_client
from mcp.client import ClientRequestContext
from mcp.shared.message import SessionMessage
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    CancelTaskRequest,
    CancelTaskRequestParams,
    CancelTaskResult,
    CreateTaskResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    GetTaskPayloadRequest,
    GetTaskPayloadRequestParams,
    GetTaskRequest,
    GetTaskRequestParams,
    GetTaskResult,
    JSONRPCNotification,
    JSONRPCResponse,
    ListTasksRequest,
    ListTasksResult,
    PromptReference,
    Task,
    TaskMetadata,
    TaskStatusNotificationParams,
    TextContent,
    TextResourceContents,
)
from pydantic import ValidationError

from kit.clients.messages import turn_value
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import HOLD, Call, ScriptedModel
from parley.testing.home import Home
from parley.version import __version__
from parley.wire.elicitation import FULL_SCHEMA

NOTICES: Final = ("notifications/initial_state", "notifications/stream_disconnected")


class Connected:
    """A session, and all messages on the raw stream below it."""

    def __init__(self, session: ClientSession, cwd: str) -> None:
        self.session, self.cwd = session, cwd
        self.notifications: asyncio.Queue[JSONRPCNotification] = asyncio.Queue()
        self.results: list[dict[str, Any]] = []
        """The results of all requests."""

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the value of a typed result, which the client has validated with the output schema of the tool."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            result = await self.session.call_tool(tool, arguments)
        assert not result.is_error, result
        value = result.structured_content
        assert isinstance(value, dict)
        return value

    async def create(self) -> str:
        created = await self.call("conversationCreate", prompt="", model="m", cwd=self.cwd)
        assert created == {"conversation_id": created["conversation_id"], "model": "m"}
        return str(created["conversation_id"])

    async def send(self, conversation: str, text: str) -> str:
        content = [{"type": "text", "text": text}]
        accepted = await self.call("conversationSendMessage", conversation_id=conversation, content=content)
        assert accepted == {"status": "ok", "message_id": accepted["message_id"]}
        return str(accepted["message_id"])

    async def read_until(self, conversation: str, last: str) -> list[dict[str, Any]]:
        """Poll the events of a conversation, and return them up to the first event of the type `last`."""
        events: list[dict[str, Any]] = []
        after = 0
        while not events or events[-1]["type"] != last:
            page = await self.call("conversationRead", conversation_id=conversation, after=after, wait_seconds=5)
            events += [one["msg"] for one in page["events"]]
            after = page["seq"]
        return events

    async def notified(self, *wanted: str) -> tuple[str, dict[str, Any]]:
        """Return the next notification of one of these types, unchanged."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (seen := await self.notifications.get()).method not in wanted:
                pass
        return seen.method, dict(seen.params or {})


def parameters(home: Home) -> StdioServerParameters:
    command, *arguments = home.command
    return StdioServerParameters(command=command, args=arguments, env=home.environ, cwd=home.work)


def log_of(home: Home) -> TextIO:
    return (home.path / "stderr").open("w")


@asynccontextmanager
async def connected(model: ScriptedModel) -> AsyncIterator[Connected]:
    """Connect the official client to a server, and record the messages between them."""
    home = Home(model)
    home.open()
    try:
        with log_of(home) as log:
            async with stdio_client(parameters(home), errlog=log) as (arriving, leaving):
                send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
                async with ClientSession(receive, leaving) as session, anyio.create_task_group() as tasks:
                    connection = Connected(session, str(home.work))

                    async def relay() -> None:
                        async with send:
                            async for message in arriving:
                                assert isinstance(message, SessionMessage), message
                                if isinstance(message.message, JSONRPCNotification):
                                    connection.notifications.put_nowait(message.message)
                                if isinstance(message.message, JSONRPCResponse):
                                    connection.results.append(message.message.result)
                                await send.send(message)

                    tasks.start_soon(relay)
                    async with asyncio.timeout(TIMEOUT_SECONDS):
                        await session.initialize()
                        # from now on, the client validates results with the output schemas
                        await session.list_tools()
                    yield connection
                    tasks.cancel_scope.cancel()
    finally:
        home.close()


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_it_initializes_and_lists_the_tools(parley_model: ScriptedModel) -> None:
    async with connected(parley_model) as client:
        initialized = client.session.initialize_result
        async with asyncio.timeout(TIMEOUT_SECONDS):
            tools = (await client.session.list_tools()).tools
            await client.session.send_ping()

        assert initialized is not None
        assert initialized.protocol_version == "2025-11-25"
        assert initialized.server_info.model_dump(exclude_none=True) == {
            "name": "parley",
            "title": "Parley",
            "version": __version__,
        }
        assert initialized.instructions is not None
        assert [tool.name for tool in tools][:6] == [
            "codex",
            "codex-reply",
            "conversationCreate",
            "conversationSendMessage",
            "conversationStream",
            "conversationsList",
        ]
        assert all(tool.output_schema is not None and tool.annotations is not None for tool in tools)


async def test_it_creates_sends_and_reads_until_the_turn_is_done(parley_model: ScriptedModel) -> None:
    parley_model.says("Hello, ", HOLD, "world")
    async with connected(parley_model) as client:
        conversation = await client.create()
        message_id = await client.send(conversation, "greet me")
        await parley_model.wait_until_held()
        running = await client.call("conversationStatus", conversation_id=conversation)
        parley_model.release()
        events = await client.read_until(conversation, "task_complete")
        listed = await client.call("conversationsList")
        done = await client.call("conversationStatus", conversation_id=conversation)

        assert (running["state"], done["state"]) == ("running", "idle")
        assert events == [
            {"type": "task_started"},
            {
                "type": "user_message",
                "message_id": message_id,
                "content": [{"type": "text", "text": "greet me"}],
                "principal": "local",
            },
            {"type": "agent_message", "message": "Hello, world"},
            {"type": "task_complete", "last_agent_message": "Hello, world"},
        ]
        assert listed == {
            "conversations": [
                {
                    "conversation_id": conversation,
                    "title": "greet me",
                    "updated_at": done["updated_at"],
                    "cwd": client.cwd,
                    "state": "idle",
                    "unread": True,
                    "failed": False,
                }
            ]
        }


async def test_it_runs_codex_and_codex_reply_and_gets_their_progress(parley_model: ScriptedModel) -> None:
    parley_model.says("fir", HOLD, "st")
    parley_model.says("second")
    heard: list[tuple[float, float | None, str | None]] = []

    async def on_notification(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        if len(heard) == 1:
            await parley_model.wait_until_held()
            parley_model.release()

    async with connected(parley_model) as client, asyncio.timeout(TIMEOUT_SECONDS):
        result = await client.session.call_tool(
            "codex", {"prompt": "go", "cwd": client.cwd}, progress_callback=on_notification
        )
        value = result.structured_content
        assert isinstance(value, dict)
        again = await client.session.call_tool("codex-reply", {"sessionId": value["sessionId"], "prompt": "and on"})

        assert text_of(result) == "first"
        assert value == turn_value(value["sessionId"], "first")
        assert text_of(again) == "second"
        assert again.structured_content == turn_value(value["sessionId"], "second")
        assert heard[0] == (2, None, "user_message")
        # the server sends it together with the result
        assert "task_complete" not in [message for _, _, message in heard]


async def test_its_cancelled_codex_call_interrupts_the_turn(parley_model: ScriptedModel) -> None:
    parley_model.says("one", HOLD)
    async with connected(parley_model) as client:
        running = asyncio.create_task(client.session.call_tool("codex", {"prompt": "go"}))
        await parley_model.wait_until_held()
        _, configured = await client.notified("session_configured")

        running.cancel()
        await parley_model.wait_abandoned()
        events = await client.read_until(configured["msg"]["session_id"], "error")

        assert [event["type"] for event in events] == ["task_started", "user_message", "error"]
        interrupted = {"message": " Turn interrupted", "reason": "interrupted", "principal": "local"}
        assert events[-1] == {"type": "error", **interrupted}
        await asyncio.wait({running})
        assert running.cancelled()
        await client.session.send_ping()
        assert [one for one in client.results if one.get("isError")] == []


async def test_a_failed_call_is_a_result_with_its_reason(parley_model: ScriptedModel) -> None:
    parley_model.fails(400, body="no such model")
    async with connected(parley_model) as client, asyncio.timeout(TIMEOUT_SECONDS):
        failed = await client.session.call_tool("codex", {"prompt": "go"})
        unfit = await client.session.call_tool("conversationCreate", {"prompt": "", "model": "m"})
        unknown = await client.session.call_tool("nope", {})

        assert [one.is_error for one in (failed, unfit, unknown)] == [True, True, True]
        assert text_of(failed) == "unexpected status 400 Bad Request: no such model"
        assert unfit.structured_content == {
            "message": "Failed to parse arguments for conversationCreate: missing field `cwd`",
            "code": "bad_arguments",
        }
        assert text_of(unknown) == "Unknown tool 'nope'"


async def test_on_the_raw_stream_under_it_a_conversation_is_live(parley_model: ScriptedModel) -> None:
    parley_model.says("Hello, ", HOLD, "world")
    async with connected(parley_model) as client:
        conversation = await client.create()
        await client.call("conversationStream", conversation_id=conversation)
        meta = {"conversationId": conversation}
        empty = {"_meta": {**meta, "seq": 1}, "initial_state": {"events": []}}
        assert await client.notified(*NOTICES) == ("notifications/initial_state", empty)

        await client.send(conversation, "greet me")
        first = await client.notified("agent_message_delta", "agent_message")
        await parley_model.wait_until_held()
        parley_model.release()
        rest = [await client.notified("agent_message_delta", "agent_message", "task_complete") for _ in range(3)]

        place = first[1]["_meta"]["item"]
        seq, last = (one["_meta"]["seq"] for _, one in rest[1:])
        assert seq < last
        said, done = "Hello, world", {"type": "task_complete", "last_agent_message": "Hello, world"}
        assert [first, *rest] == [
            (
                "agent_message_delta",
                {
                    "_meta": {**meta, "item": place, "offset": 0},
                    "msg": {"type": "agent_message_delta", "delta": "Hello, "},
                },
            ),
            (
                "agent_message_delta",
                {
                    "_meta": {**meta, "item": place, "offset": 7},
                    "msg": {"type": "agent_message_delta", "delta": "world"},
                },
            ),
            ("agent_message", {"_meta": {**meta, "seq": seq}, "msg": {"type": "agent_message", "message": said}}),
            ("task_complete", {"_meta": {**meta, "seq": last}, "msg": done}),
        ]

        await client.call("conversationStream", conversation_id=conversation)
        taken_over = {"_meta": meta, "reason": "New stream() took over", "code": "taken_over"}
        assert await client.notified(*NOTICES) == ("notifications/stream_disconnected", taken_over)
        _, again = await client.notified(*NOTICES)
        assert [one["msg"]["type"] for one in again["initial_state"]["events"]] == [
            "task_started",
            "user_message",
            "agent_message",
            "task_complete",
        ]


async def test_a_stream_is_resumed_after_a_position(parley_model: ScriptedModel) -> None:
    parley_model.says("Hello, ", HOLD, "world")
    async with connected(parley_model) as client:
        conversation = await client.create()
        await client.call("conversationStream", conversation_id=conversation)
        await client.send(conversation, "greet me")
        _, message = await client.notified("user_message")
        await parley_model.wait_until_held()
        await client.call("conversationStream", conversation_id=conversation, after=message["_meta"]["seq"])
        await client.notified("notifications/stream_disconnected")
        _, snapshot = await client.notified("notifications/initial_state")
        parley_model.release()
        rest = [await client.notified("agent_message_delta", "agent_message", "task_complete") for _ in range(3)]

    (so_far,) = snapshot["initial_state"]["events"]
    assert (so_far["_meta"]["offset"], so_far["msg"]) == (0, {"type": "agent_message_delta", "delta": "Hello, "})
    assert [name for name, _ in rest] == ["agent_message_delta", "agent_message", "task_complete"]


async def test_it_can_be_asked_and_answers_with_a_form(parley_model: ScriptedModel) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    answers = [
        ElicitResult(action="accept", content={"decision": "approved"}),
        ElicitResult(action="accept", content={"decision": "denied", "reason": "one is enough"}),
        ElicitResult(action="decline"),
    ]

    async def fill_in(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        asked.append((params.message, params.requested_schema))
        return answers[len(asked) - 1]

    home = Home(parley_model)
    home.open()
    try:
        parley_model.says(*(Call("shell", {"command": ["touch", name]}, f"call-{name}") for name in "abc"))
        parley_model.says("Done")
        careful = {"cwd": str(home.work), "approval-policy": "untrusted", "sandbox": "danger-full-access"}
        with log_of(home) as log:
            async with (
                stdio_client(parameters(home), errlog=log) as (arriving, leaving),
                ClientSession(arriving, leaving, elicitation_callback=fill_in) as session,
                asyncio.timeout(TIMEOUT_SECONDS),
            ):
                await session.initialize()
                result = await session.call_tool("codex", {"prompt": "go", **careful})

        assert text_of(result) == "Done"
        assert asked == [(f"Allow Codex to run `touch {name}` in `{home.work}`?", FULL_SCHEMA) for name in "abc"]
        assert [path.name for path in home.work.iterdir()] == ["a"]
        outputs = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
        assert outputs[1:] == ["exec command rejected by user: one is enough", "exec command rejected by user"]
    finally:
        home.close()


async def test_the_client_that_looks_for_a_newer_protocol_first_finds_its_way(
    parley_model: ScriptedModel,
) -> None:
    home = Home(parley_model, config="[mcp]\nmodern = false\n")
    home.open()
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(parameters(home)) as client:
            result = await client.call_tool("codex", {"prompt": "go"})

            assert client.protocol_version == "2025-11-25"
            assert text_of(result) == "Done"
    finally:
        home.close()


async def test_it_lists_reads_and_subscribes_to_resources(parley_model: ScriptedModel) -> None:
    async with connected(parley_model) as client, asyncio.timeout(TIMEOUT_SECONDS):
        conversation = await client.create()
        listed = await client.session.list_resources()
        templates = (await client.session.list_resource_templates()).resource_templates
        uri = f"parley://conversations/{conversation}"
        with pytest.warns(MCPDeprecationWarning):
            await client.session.subscribe_resource(uri)
        await client.send(conversation, "greet me")
        updated = await client.notified("notifications/resources/updated")
        await client.read_until(conversation, "task_complete")
        (content,) = (await client.session.read_resource(uri)).contents
        with pytest.raises(MCPError) as unknown:
            await client.session.read_resource("parley://nothing")
        with pytest.warns(MCPDeprecationWarning):
            await client.session.unsubscribe_resource(uri)

        assert [one.uri for one in listed.resources] == ["parley://conversations", "parley://attention", uri]
        assert templates[0].uri_template == "parley://conversations/{id}"
        assert updated == ("notifications/resources/updated", {"uri": uri})
        assert isinstance(content, TextResourceContents)
        assert (content.uri, content.mime_type) == (uri, "text/markdown")
        assert content.text.startswith("# greet me\n")
        assert unknown.value.error.code == -32002


async def test_it_gets_prompts_and_completes_their_arguments(parley_model: ScriptedModel) -> None:
    async with connected(parley_model) as client, asyncio.timeout(TIMEOUT_SECONDS):
        conversation = await client.create()
        prompts = (await client.session.list_prompts()).prompts
        prompt = await client.session.get_prompt("review-changes", {"conversation": conversation})
        completed = await client.session.complete(
            PromptReference(name="review-changes"), {"name": "conversation", "value": conversation[:4]}
        )

        assert [one.name for one in prompts] == ["review-changes", "plan", "explain-project"]
        assert [one.content.type for one in prompt.messages] == ["text", "resource"]
        assert completed.completion.values == [conversation]


async def test_it_runs_codex_as_a_task(parley_model: ScriptedModel) -> None:
    parley_model.says("fir", HOLD, "st")
    parley_model.says("on", HOLD, "e")
    async with connected(parley_model) as client, asyncio.timeout(TIMEOUT_SECONDS):
        session = client.session
        initialized = session.initialize_result
        assert initialized is not None
        assert initialized.capabilities.tasks is not None

        async def start(name: str, arguments: dict[str, Any]) -> Task:
            params = CallToolRequestParams(name=name, arguments=arguments, task=TaskMetadata(ttl=60_000))
            with pytest.raises(ValidationError):  # the session of the client expects the result of the tool
                await session.send_request(CallToolRequest(params=params), CreateTaskResult)
            return CreateTaskResult.model_validate(client.results[-1]).task

        async def status(task_id: str) -> str:
            request = GetTaskRequest(params=GetTaskRequestParams(task_id=task_id))
            return (await session.send_request(request, GetTaskResult)).status

        task = await start("codex", {"prompt": "go", "cwd": client.cwd})
        await parley_model.wait_until_held()
        assert (task.status, await status(task.task_id)) == ("working", "working")
        parley_model.release()
        payload = GetTaskPayloadRequest(params=GetTaskPayloadRequestParams(task_id=task.task_id))
        result = await session.send_request(payload, CallToolResult)
        _, update = await client.notified("notifications/tasks/status")

        reply = await start("codex-reply", {"threadId": task.task_id.partition(".")[0], "prompt": "and on"})
        await parley_model.wait_until_held()
        cancel = CancelTaskRequest(params=CancelTaskRequestParams(task_id=reply.task_id))
        cancelled = await session.send_request(cancel, CancelTaskResult)
        listed = (await session.send_request(ListTasksRequest(), ListTasksResult)).tasks

        assert text_of(result) == "first"
        assert TaskStatusNotificationParams.model_validate(update).status == "completed"
        assert await status(task.task_id) == "completed"
        assert cancelled.status == "cancelled"
        assert [(one.task_id, one.status) for one in listed] == [(reply.task_id, "cancelled")]
