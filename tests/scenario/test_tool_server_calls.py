"""Calls of tools of tool servers: the offered tools, the events, and the output for the model."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

import pytest
from aiohttp import web
from msgspec import structs

from kit.builders.events import background_event, error, task_complete, task_started
from kit.builders.tools import offered
from kit.clients.codex_calls import (
    APIS,
    EITHER_API,
    AskedFor,
    CallSent,
    Output,
    User,
    Wire,
    answered,
    body,
    configured,
    is_event,
    pairs,
    shown,
    speaking,
)
from kit.clients.traces import SPENT, said
from kit.models.raw_provider import settings
from kit.servers.tool_server import Message
from kit.servers.tool_servers import Loopback, program
from parley.config.types import ToolServer
from parley.testing import Call, ScriptedModel
from parley.testing.render import Api
from parley.wire.events import (
    Duration,
    EventMsg,
    Invocation,
    McpToolCallBegin,
    McpToolCallEnd,
    PlanStep,
    PlanUpdate,
    ToolCallOutcome,
)
from parley.wire.ids import CallId

NO_TIME: Final = Duration(secs=0, nanos=0)
TOKEN: Final = "tok-5e3f7c1d-never-shown"


def table(server: ToolServer) -> str:
    """Return a tool server as a table of config.toml."""
    keys: dict[str, Any] = {"command": server.command, "args": list(server.args), "url": server.url}
    keys["bearer_token_env_var"] = server.bearer_token_env_var
    keys["tool_timeout_seconds"] = server.tool_timeout_seconds
    given = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if value]
    return "\n".join((f'[mcp_servers."{server.name}"]', *given, ""))


def ours(api: Api, *, with_plan: bool = False) -> list[Any]:
    """Return Parley's own tools, as in a request."""
    chosen = settings(approval_policy="never", sandbox_mode="danger-full-access", include_plan_tool=with_plan)
    return offered(api, chosen)


def theirs(api: Api, name: str, description: str, properties: Any, **more: Any) -> Any:
    """Return a tool of a tool server, as in a request."""
    parameters = {"type": "object", "properties": properties, **more}
    function = {"name": name, "description": description, "strict": False, "parameters": parameters}
    return {"type": "function", "function": function} if api == "chat" else {"type": "function", **function}


def kit_tools(api: Api, server: str) -> list[Any]:
    """Return all tools of the kit's program under a short name.

    These are the tools of the recorded traffic, with their descriptions, and the other tools of the program.
    """
    number, text = {"type": "number"}, {"type": "string"}
    of_image = {"mode": text, "opt": text, "tags": {"type": "array", "items": text}}
    described: dict[str, tuple[str, Any, Any]] = {
        "add": ("Adds two integers.", {"a": number, "b": number}, {"required": ["a", "b"]}),
        "env": ("Names of its environment variables.", {}, {}),
        "fail": ("Reports a tool failure.", {}, {}),
        "image": ("Returns an image.", of_image, {}),
        "rpc_error": ("Answers with a JSON-RPC error.", {}, {}),
        "slow": ("Sleeps.", {"seconds": number}, {}),
    }
    plain = "ask big cancelled change_tools child crash deep echo pid release steps unreadable wait"
    described |= {name: ("", {}, {}) for name in plain.split()}
    return [
        theirs(api, f"{server}__{name}", description, properties, **more)
        for name, (description, properties, more) in sorted(described.items())
    ]


def names_of(api: Api, tools: Iterable[Any]) -> list[str]:
    return [str((tool["function"] if api == "chat" else tool)["name"]) for tool in tools]


def began(call_id: str, tool: str, arguments: Any, *, server: str = "x") -> McpToolCallBegin:
    invocation = Invocation(server=server, tool=tool, arguments=arguments)
    return McpToolCallBegin(call_id=CallId(call_id), invocation=invocation)


def ended(begin: McpToolCallBegin, *, ok: dict[str, Any] | None = None, err: str | None = None) -> McpToolCallEnd:
    """Build the end event of a call, after `untimed`."""
    outcome = ToolCallOutcome(ok=ok) if err is None else ToolCallOutcome(err=err)
    return McpToolCallEnd(call_id=begin.call_id, invocation=begin.invocation, duration=NO_TIME, result=outcome)


def untimed(messages: Iterable[Any]) -> list[Any]:
    """Replace the durations of calls in the messages with zero, after checking them."""

    def covered(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.keys() == {"secs", "nanos"}:
            assert 0 <= value["secs"] <= 60, value
            assert 0 <= value["nanos"] < 1_000_000_000, value
            return {"secs": 0, "nanos": 0}
        return {key: covered(one) for key, one in value.items()}

    return [covered(message) for message in messages]


def text_of(*texts: str) -> list[Any]:
    return [{"type": "text", "text": text} for text in texts]


def output_of_texts(*texts: str) -> str:
    """Return the content of these texts in the form that the model gets."""
    return "[" + ",".join(f'{{"text":{json.dumps(text)},"type":"text"}}' for text in texts) + "]"


def belongs(message: Any, request_id: int) -> bool:
    """Return whether a message belongs to this call, or is its answer."""
    if "method" in message:
        return bool(message["params"]["_meta"]["requestId"] == request_id)
    return bool(message["id"] == request_id)


async def answer_of(wire: Wire, request_id: int) -> list[Any]:
    async with asyncio.timeout(90):
        return untimed(await wire.answer(request_id))


# --- calls -------------------------------------------------------------------------------


def _table_of_calls() -> list[tuple[CallSent, tuple[EventMsg, ...], str]]:
    """Return each call of a long turn, its events, and the output for the model."""
    rows: list[tuple[CallSent, tuple[EventMsg, ...], str]] = []

    def add(
        tool: str, arguments: str, output: str, read: Any = None, ok: Any = None, err: str | None = None
    ) -> None:
        call_id = f"c{len(rows) + 1}"
        begin = began(call_id, tool, read)
        events = (begin, ended(begin, ok=ok, err=err)) if ok or err else ()
        rows.append((CallSent(call_id, f"x__{tool}", arguments), events, output))

    three = {"content": text_of("3"), "structuredContent": {"sum": 3}}
    add("add", '{"a": 1, "b": 2}', output_of_texts("3"), {"a": 1, "b": 2}, ok=three)
    add("fail", "{}", output_of_texts("it failed"), {}, ok={"content": text_of("it failed"), "isError": True})
    refused = "tool call error: tool call failed for `x/rpc_error`"
    add("rpc_error", "{}", refused, {}, err=refused)
    add("add", "{bad", "err: JSON is malformed: object keys must be strings (byte 1)")
    add("add", "[1, 2]", "err: Expected `object | null`, got `array`")
    add("echo", "", output_of_texts("null"), None, ok={"content": text_of("null")})
    add("echo", "null", output_of_texts("null"), None, ok={"content": text_of("null")})
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    image_output = '[{"data":"AAAA","mimeType":"image/png","type":"image"}]'
    add("image", '{"mode": "a"}', image_output, {"mode": "a"}, ok={"content": [image]})
    add("nope", "{}", "unsupported call: x__nope")
    begin = began("c10", "steps", {"count": 1})
    progress = background_event("Progress of x/steps: 1 of 1 (step 1)")
    events = (begin, progress, ended(begin, ok={"content": text_of("done")}))
    rows.append((CallSent("c10", "x__steps", '{"count": 1}'), events, output_of_texts("done")))
    unread = "tool call error: tool call failed for `x/unreadable`: its response cannot be read"
    add("unreadable", "{}", unread, {}, err=unread)
    return rows


@pytest.mark.child_process
@pytest.mark.promises("servers.model-output")
@pytest.mark.parametrize("api", APIS)
async def test_every_kind_of_call_is_shown_and_answered_as_it_should_be(
    parley_model: ScriptedModel, api: Api
) -> None:
    rows = _table_of_calls()
    for sent, _, _ in rows:
        parley_model.says(Call(sent.name, sent.arguments, call_id=sent.call_id))
    async with speaking(parley_model, api=api, config=table(program("x"))) as wire:
        wire.codex(1, "go")
        messages = await answer_of(wire, 1)

    (session,) = wire.sessions
    payloads = [event for _, events, _ in rows for event in (*events, SPENT)]
    events = shown(api, task_started(), *payloads, *said("Done"), task_complete("Done"))
    assert messages == [*configured(1, session), *pairs(1, "1", *events), answered(1, "Done")]

    asked: list[AskedFor] = [User("go")]
    tools = [*ours(api), *kit_tools(api, "x")]
    for request, (sent, _, output) in zip(parley_model.requests, rows, strict=False):
        assert request.body == body(api, *asked, cwd=wire.work, session=session, tools=tools)
        asked += [sent, Output(sent.call_id, output)]
    assert parley_model.requests[-1].body == body(api, *asked, cwd=wire.work, session=session, tools=tools)
    assert len(parley_model.requests) == len(rows) + 1


@pytest.mark.parametrize("api", EITHER_API)
async def test_tools_come_after_our_own_in_the_order_of_their_names(parley_model: ScriptedModel, api: Api) -> None:
    long = "a-server-with-a-name-that-leaves-hardly-any-room-for-its-tools"
    shortened = f"{long[:24]}{hashlib.sha1(f'{long}__echo'.encode()).hexdigest()}"
    parley_model.says(
        Call(shortened, {"of": 1}, call_id="c1"),
        Call("update_plan", {"plan": [{"step": "look", "status": "pending"}]}, call_id="c2"),
        Call("z__echo", {"of": 3}, call_id="c3"),
    )
    config = table(program("z")) + table(program(long))
    async with speaking(parley_model, api=api, config=config) as wire:
        wire.codex(1, "go", **{"include-plan-tool": True})
        messages = await answer_of(wire, 1)

    (session,) = wire.sessions
    tools = parley_model.requests[0].body["tools"]
    own = ours(api, with_plan=True)
    assert names_of(api, own) == ["shell", "apply_patch", "update_plan", "view_image"]
    assert tools[: len(own)] == own
    assert tools[-len(kit_tools(api, "z")) :] == kit_tools(api, "z")
    between = names_of(api, tools[len(own) : -len(kit_tools(api, "z"))])
    of_long = [name.removeprefix("z__") for name in names_of(api, kit_tools(api, "z"))]
    digests = {name: hashlib.sha1(f"{long}__{name}".encode()).hexdigest() for name in of_long}
    whole = {name: f"{long}__{name}" for name in of_long}
    assert between == sorted(
        whole[name] if len(whole[name]) <= 64 else long[:24] + digests[name] for name in of_long
    )
    assert shortened in between

    first, third = began("c1", "echo", {"of": 1}, server=long), began("c3", "echo", {"of": 3}, server="z")
    events = shown(
        api,
        task_started(),
        first,
        ended(first, ok={"content": text_of('{"of": 1}')}),
        PlanUpdate(explanation=None, plan=(PlanStep(step="look", status="pending"),)),
        third,
        ended(third, ok={"content": text_of('{"of": 3}')}),
        SPENT,
        *said("Done"),
        task_complete("Done"),
    )
    assert messages == [*configured(1, session), *pairs(1, "1", *events), answered(1, "Done")]


@pytest.mark.promises("servers.progress")
async def test_progress_is_seen_while_the_tool_works_and_another_conversation_continues(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, config=table(program("x"))) as wire:
        parley_model.says("Let me ", "wait.", Call("x__wait", {}, call_id="c1"))
        wire.codex(1, "wait for it")
        messages = await wire.until(is_event("background_event"))
        parley_model.says(Call("x__release", {}, call_id="c2"))
        wire.codex(2, "release it")
        messages += await wire.answer(1, 2)

    wait, release = began("c1", "wait", {}), began("c2", "release", {})
    waited = (
        task_started(),
        *said("Let me ", "wait."),
        wait,
        background_event("Progress of x/wait: 0 (waiting)"),
        ended(wait, ok={"content": text_of("released")}),
    )
    released = (task_started(), release, ended(release, ok={"content": text_of("ok")}))
    for number, session, events in ((1, wire.sessions[0], waited), (2, wire.sessions[1], released)):
        assert untimed(one for one in messages if belongs(one, number)) == [
            *configured(number, session),
            *pairs(number, str(number), *shown("chat", *events, *said("Done"), task_complete("Done"))),
            answered(number, "Done"),
        ]
    last = [request.body["messages"][-1]["content"] for request in parley_model.requests]
    assert last[:2] == ["wait for it", "release it"]
    assert sorted(last[2:]) == sorted([output_of_texts("released"), output_of_texts("ok")])


async def test_a_call_that_takes_longer_than_the_settings_allow_is_ended_and_the_turn_continues(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(Call("x__slow", {}, call_id="c1"))
    parley_model.says(Call("y__add", {"a": 1, "b": 2}, call_id="c2"))
    config = table(structs.replace(program("x"), tool_timeout_seconds=1)) + table(program("y"))
    async with speaking(parley_model, config=config) as wire:
        wire.codex(1, "go")
        messages = await answer_of(wire, 1)

    slow, add = began("c1", "slow", {}), began("c2", "add", {"a": 1, "b": 2}, server="y")
    late = "tool call error: tool call failed for `x/slow`: request timed out"
    events = (
        task_started(),
        slow,
        ended(slow, err=late),
        add,
        ended(add, ok={"content": text_of("3"), "structuredContent": {"sum": 3}}),
        *shown("chat", *said("Done")),
        task_complete("Done"),
    )
    assert messages == [*configured(1, wire.sessions[0]), *pairs(1, "1", *events), answered(1, "Done")]
    outputs = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
    assert outputs == [late, output_of_texts("3")]


@pytest.mark.promises("servers.requests")
async def test_pings_of_a_tool_server_are_answered_and_other_requests_refused(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(Call("x__ask", {}, call_id="c1"))
    async with speaking(parley_model, config=table(program("x"))) as wire:
        wire.codex(1, "go")
        await answer_of(wire, 1)

    (output,) = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
    (block,) = json.loads(output)
    assert json.loads(block["text"]) == {
        "ping": {},
        "sampling/createMessage": -32601,
        "roots/list": -32601,
        "elicitation/create": -32601,
    }


# --- addresses ---------------------------------------------------------------------------


@pytest.mark.promises("servers.secrets")
async def test_an_http_server_gets_its_token_which_appears_nowhere_else(parley_model: ScriptedModel) -> None:
    loopback = Loopback(TOKEN)
    parley_model.says(Call("far__add", {"a": 1, "b": 2}, call_id="c1"))
    parley_model.says(Call("far__steps", {"count": 1}, call_id="c2"))
    parley_model.says(Call("shell", {"command": ["env"]}, call_id="c3"))
    parley_model.says(Call("near__env", {}, call_id="c4"))
    env = {"TICKETS_TOKEN": TOKEN, "PARLEY_LOG": "debug"}
    async with loopback.open() as url:
        config = table(ToolServer(name="far", url=url, bearer_token_env_var="TICKETS_TOKEN"))
        async with speaking(parley_model, config=config + table(program("near")), env=env) as wire:
            wire.codex(1, "go")
            messages = await answer_of(wire, 1)
            wire.raw.close_stdin()
            assert await wire.raw.exit_code() == 0
            log = wire.raw.stderr_text()
            kept = [path.read_bytes() for path in wire.raw.home.rglob("*") if path.is_file()]

    add, steps = (
        began("c1", "add", {"a": 1, "b": 2}, server="far"),
        began("c2", "steps", {"count": 1}, server="far"),
    )
    events = (
        task_started(),
        add,
        ended(add, ok={"content": text_of("3"), "structuredContent": {"sum": 3}}),
        steps,
        background_event("Progress of far/steps: 1 of 1 (step 1)"),
        ended(steps, ok={"content": text_of("done")}),
    )
    begin = [*configured(1, wire.sessions[0]), *pairs(1, "1", *events)]
    assert messages[: len(begin)] == begin
    assert messages[-1] == answered(1, "Done")
    assert parley_model.requests[0].body["tools"] == [
        *ours("chat"),
        *kit_tools("chat", "far"),
        *kit_tools("chat", "near"),
    ]
    outputs = [
        message["content"] for message in parley_model.requests[-1].body["messages"][-8:] if message["content"]
    ]
    assert outputs[:2] == [output_of_texts("3"), output_of_texts("done")]
    assert len(outputs) == 4

    assert set(loopback.seen_tokens) == {f"Bearer {TOKEN}"}
    assert (loopback.sessions, loopback.farewells) == (1, 1)
    assert "DEBUG" in log
    assert "session-1" not in log
    for place in (log.encode(), *wire.raw.frames, *kept, *(request.raw for request in parley_model.requests)):
        assert TOKEN.encode() not in place
    assert not any(TOKEN in value for request in parley_model.requests for value in request.headers.values())
    assert all("TICKETS_TOKEN" not in output for output in outputs)


async def test_an_address_without_its_token_is_named_with_the_variable_and_the_others_work(
    parley_model: ScriptedModel,
) -> None:
    strict, open_to_all = Loopback("another token"), Loopback()
    parley_model.says(Call("open__add", {"a": 1, "b": 2}, call_id="c1"))
    async with strict.open() as url, open_to_all.open() as open_url:
        config = "".join(
            table(server)
            for server in (
                ToolServer(name="unset", url=url, bearer_token_env_var="NO_SUCH_TOKEN"),
                ToolServer(name="empty", url=url, bearer_token_env_var="EMPTY_TOKEN"),
                ToolServer(name="broken", url=url, bearer_token_env_var="BROKEN_TOKEN"),
                ToolServer(name="wrong", url=url, bearer_token_env_var="WRONG_TOKEN"),
                ToolServer(name="open", url=open_url),
            )
        )
        env = {"EMPTY_TOKEN": "", "BROKEN_TOKEN": f"{TOKEN}\n", "WRONG_TOKEN": TOKEN, "PARLEY_LOG": "debug"}
        async with speaking(parley_model, config=config, env=env) as wire:
            wire.codex(1, "go")
            messages = await answer_of(wire, 1)
            log = wire.raw.stderr_text()

    add = began("c1", "add", {"a": 1, "b": 2}, server="open")
    failures = (
        error("MCP client for `unset` failed to start: Missing environment variable: `NO_SUCH_TOKEN`"),
        error("MCP client for `empty` failed to start: Missing environment variable: `EMPTY_TOKEN`"),
        error("MCP client for `broken` failed to start: environment variable `BROKEN_TOKEN` does not hold a token"),
        error("MCP client for `wrong` failed to start: the server answered 401 Unauthorized"),
    )
    events = (
        task_started(),
        add,
        ended(add, ok={"content": text_of("3"), "structuredContent": {"sum": 3}}),
        *shown("chat", *said("Done")),
        task_complete("Done"),
    )
    assert messages == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "0", *failures),
        *pairs(1, "1", *events),
        answered(1, "Done"),
    ]
    assert parley_model.requests[0].body["tools"] == [*ours("chat"), *kit_tools("chat", "open")]
    assert set(strict.seen_tokens) == {f"Bearer {TOKEN}"}
    for place in (log.encode(), *wire.raw.frames, *(request.raw for request in parley_model.requests)):
        assert TOKEN.encode() not in place


@pytest.mark.parametrize(
    "arguments",
    [{"a0": "\N{GRINNING FACE}" * 4096}, {f"a{number}": "x" * 4000 for number in range(20)}],
    ids=["one long argument", "many arguments"],
)
async def test_arguments_in_headers_stay_within_the_limits_of_http_servers(
    parley_model: ScriptedModel, arguments: dict[str, str]
) -> None:
    """The server accepts at most 16 KiB of headers, as Node.js does."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": "string", "x-mcp-header": name} for name in arguments},
    }
    results: dict[str, dict[str, Any]] = {
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {"tools": [{"name": "locate", "inputSchema": schema}]},
        "tools/call": {"content": text_of("found")},
    }
    received: list[Any] = []

    async def answer(request: web.Request, message: Message) -> web.Response:
        method, head = message["method"], {"jsonrpc": "2.0", "id": message["id"]}
        if method == "initialize":
            loopback.forget_session()  # sessions do not exist at this version
            return web.json_response({**head, "error": {"code": -32601, "message": "unknown"}}, status=404)
        if sum(len(name) + len(value) for name, value in request.raw_headers) > 16 * 1024:
            return web.Response(status=431)
        if method == "tools/call":
            received.append(message["params"]["arguments"])
        return web.json_response({**head, "result": {"resultType": "complete", **results[method]}})

    loopback = Loopback()
    loopback.spoils = dict.fromkeys(("initialize", *results), answer)
    parley_model.says(Call("far__locate", arguments, call_id="c1"))
    async with (
        loopback.open() as url,
        speaking(parley_model, config=table(ToolServer(name="far", url=url))) as wire,
    ):
        wire.codex(1, "go")
        await answer_of(wire, 1)

    assert parley_model.requests[-1].body["messages"][-1]["content"] == output_of_texts("found")
    assert received == [arguments]
