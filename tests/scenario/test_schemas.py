"""`parley schema`, compared with real messages of servers."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types of its own

from kit.clients.approving import ASKS_FIRST, ApprovingClient, approving_client
from kit.clients.requests import ALL_TOOL_NAMES
from kit.clients.shell_turns import sh, shell
from kit.servers.git_nodes import Origin, git_settings
from kit.servers.tool_servers import program
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import HOLD, Call, Data, Reasoning, ScriptedModel
from parley.testing.render import Api
from parley.version import __version__
from parley.wire.events import EVENT_TYPES, NEVER_SENT
from parley.wire.mcp import FULL_VERSION

SENT: Final = set(EVENT_TYPES) - NEVER_SENT
PATCH: Final = "*** Begin Patch\n*** Add File: b\n+b\n*** End Patch"
OTHER_PATCH: Final = "*** Begin Patch\n*** Update File: b\n@@\n-b\n+c\n*** End Patch"


async def printed(*arguments: str) -> tuple[int | None, str, str]:
    """Return the exit code, stdout and stderr of `parley schema`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "parley", "schema", *arguments, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        said, complained = await process.communicate()
    return process.returncode, said.decode(), complained.decode()


async def document() -> Any:
    code, said, complained = await printed()
    assert (code, complained) == (0, "")
    return json.loads(said)


# --- traffic ------------------------------------------------------------------------------


class Checks:
    """Validates messages with the schemas, and records the types of their events."""

    def __init__(self, schemas: Any) -> None:
        self._schemas = schemas
        self._validators: dict[tuple[str, ...], Any] = {}
        self.events: set[str] = set()
        self.methods: set[str] = set()

    def check(self, value: Any, *path: str) -> None:
        if path not in self._validators:
            schema = self._schemas
            for name in path:
                schema = schema[name]
            self._validators[path] = Draft202012Validator(schema)
        self._validators[path].validate(value)

    def notification(self, method: str, params: Any) -> None:
        self.methods.add(method)
        self.check(params, "notifications", method)
        if method == "notifications/message":
            self.notification(params["data"]["method"], params["data"]["params"])
        for event in (
            [params["msg"]]
            if "msg" in params
            else [one["msg"] for one in params.get("initial_state", {}).get("events", [])]
        ):
            self.event(event)

    def event(self, event: Any) -> None:
        self.events.add(event["type"])
        self.check(event, "events", event["type"])

    def message(self, message: Any, tools: dict[int, str]) -> None:
        if "id" not in message:
            self.notification(message["method"], message["params"])
        elif "method" in message:
            self.check(message["params"], "requests", message["method"], "params")
        elif message["id"] in tools:
            self.check(message["result"]["structuredContent"], "tools", tools[message["id"]], "result")


class Recorder:
    """A client that approves every request, and records the tool of each of its requests."""

    def __init__(self, client: ApprovingClient, checks: Checks) -> None:
        self._client, self._checks = client, checks
        self.tools: dict[int, str] = {}

    async def use(self, tool: str, **arguments: Any) -> Any:
        """Call a tool with valid arguments; return the value of its result."""
        self._checks.check(arguments, "tools", tool, "arguments")
        call = self._client.call(tool, **arguments)
        self.tools[call] = tool
        while (message := await self._client.read()).get("id") != call or "method" in message:
            if message.get("method") == "elicitation/create":
                answer = {"action": "accept", "content": {"decision": "approved"}}
                self._checks.check(answer, "requests", "elicitation/create", "result")
                self._client.answer(message["id"], answer)
        return message["result"]["structuredContent"]


SEARCHED = {
    "type": "web_search_call",
    "id": "s1",
    "action": {"type": "search", "query": "cheese", "sources": [{"type": "url", "url": "https://a.example"}]},
}
SEARCHES: dict[Api, list[Data]] = {
    "chat": [],
    "responses": [Data(json.dumps({"type": "response.output_item.done", "item": SEARCHED}))],
}
"""The searches of the web in a response, by API."""


async def say_everything(model: ScriptedModel, client: ApprovingClient, checks: Checks, api: Api) -> None:
    """Run turns that cause every kind of event of this API."""
    recorder = Recorder(client, checks)
    config = {"show_raw_agent_reasoning": True, "limits.turn_calls": 5}
    model.fails(503, headers={"retry-after": "0"})
    model.cuts("par")
    model.says(
        Reasoning("Hm. "),
        "I see.",
        sh("c1", "echo out; echo err >&2; touch a"),
        shell("c2", "apply_patch", PATCH),
        shell("c3", "apply_patch", OTHER_PATCH),
        Call("update_plan", {"plan": [{"step": "one", "status": "pending"}]}, "c4"),
        Call("x__add", {"a": 1, "b": 2}, "c5"),
    )
    model.says(*SEARCHES[api], Call("x__fail", {}, "c6"), Call("apply_patch", {}, "c7"))
    model.says("Done")
    settings = {name.replace("_", "-"): value for name, value in ASKS_FIRST.items()}
    given = {**settings, "include-plan-tool": True, "config": config}
    session = (await recorder.use("codex", prompt="go", cwd=str(client.work), **given))["sessionId"]
    its = {"conversation_id": session}
    model.fails(400, body="no")
    await recorder.use("codex-reply", threadId=session, prompt="fail")
    await recorder.use("conversationStream", **its)
    model.says(HOLD, "And then?")
    said = {**its, "content": [{"type": "text", "text": "go"}]}
    await recorder.use("conversationSendMessage", **said)
    await model.wait_until_held()
    queued = await recorder.use("conversationSendMessage", **said, delivery="queue")
    await recorder.use("queueList", **its)
    await recorder.use("queueEdit", **said, message_id=queued["message_id"])
    await recorder.use("queueRemove", **its, message_id=queued["message_id"])
    await recorder.use("queueResume", **its)
    model.release()
    await recorder.use("conversationStream", **its, **{"as": "log"})
    await recorder.use("codex-reply", threadId=session, prompt="and on")
    await recorder.use("conversationStream", **its, last=1, exclusive=True)
    assert (await recorder.use("conversationSearch", text="AND"))["messages"]
    await recorder.use("settingsList")
    assert "before" in await recorder.use("conversationRead", **its, before=10**6, limit=1)
    model.says("Done")
    worked = await recorder.use("codex", prompt="go", repository="app", config={"approval_policy": "never"})
    assert worked["workspace"]["repository"] == "app"
    assert (await recorder.use("conversationStatus", conversation_id=worked["sessionId"]))["workspace"]["pushed"]
    for one in (await recorder.use("conversationRead", **its))["events"]:
        checks.event(one["msg"])
    for frame in client.raw.frames:
        checks.message(msgspec.json.decode(frame), recorder.tools)


@pytest.mark.promises("schema.traffic")
async def test_everything_that_servers_send_fits_the_schemas(parley_model: ScriptedModel, tmp_path: Path) -> None:
    checks = Checks(await document())
    server = program("x")
    workspace = git_settings(str(Origin(tmp_path).path), tmp_path / "git")
    table = f'[mcp_servers.x]\ncommand = "{server.command}"\nargs = {json.dumps(list(server.args))}\n'
    table += f"[workspace]\n{workspace}\n[prices.scripted-model]\ninput = 1\noutput = 2\n"
    apis: tuple[Api, ...] = ("chat", "responses")
    for api in apis:
        async with approving_client(
            parley_model,
            version=FULL_VERSION,
            api=api,
            config=table,
            stream_max_retries=2,
            request_max_retries=1,
        ) as client:
            await say_everything(parley_model, client, checks, api)

    assert checks.events == SENT
    assert checks.methods == SENT | {
        "codex/event",
        "notifications/initial_state",
        "notifications/stream_disconnected",
        "notifications/message",
    }


# --- the document -------------------------------------------------------------------------


@pytest.mark.promises("schema.document")
async def test_the_document_has_every_event_notification_and_tool() -> None:
    schemas = await document()

    assert (schemas["version"], schemas["protocol_version"]) == (__version__, FULL_VERSION)
    assert list(schemas["events"]) == list(EVENT_TYPES)
    assert set(schemas["notifications"]) == SENT | {
        "codex/event",
        "notifications/initial_state",
        "notifications/stream_disconnected",
        "notifications/message",
        "notifications/progress",
        "notifications/cancelled",
    }
    assert list(schemas["tools"]) == ALL_TOOL_NAMES
    each = [
        *schemas["events"].values(),
        *schemas["notifications"].values(),
        *(one for group in ("requests", "tools") for pair in schemas[group].values() for one in pair.values()),
    ]
    for schema in each:
        Draft202012Validator.check_schema(schema)
        assert '"$ref"' not in json.dumps(schema)  # each schema is complete


@pytest.mark.promises("schema.document")
async def test_the_tools_are_those_of_tools_list(parley_model: ScriptedModel) -> None:
    schemas = await document()
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        listed = (await client.result_of(client.request("tools/list", {})))["tools"]

    assert schemas["tools"] == {
        tool["name"]: {"arguments": tool["inputSchema"], "result": tool["outputSchema"]} for tool in listed
    }


@pytest.mark.promises("schema.document")
async def test_a_name_prints_one_part_of_it() -> None:
    schemas = await document()
    parts = {
        "events": schemas["events"],
        "agent_message": schemas["events"]["agent_message"],
        "notifications/initial_state": schemas["notifications"]["notifications/initial_state"],
        "elicitation/create": schemas["requests"]["elicitation/create"],
        "codex-reply": schemas["tools"]["codex-reply"],
    }
    for name, part in parts.items():
        code, said, complained = await printed(name)
        assert (code, json.loads(said), complained) == (0, part, "")


async def test_a_wrong_command_line_is_explained() -> None:
    unknown = (
        "parley schema: unknown name 'nope' (choose from events, notifications, requests, tools, "
        "the type of an event, a method, or the name of a tool); see `parley schema --help`\n"
    )

    assert await printed("nope") == (2, "", unknown)
    assert await printed("codex", "events") == (
        2,
        "",
        "parley schema: unexpected argument 'events'; see `parley schema --help`\n",
    )
