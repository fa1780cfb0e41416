"""The permissions of clients with each role, and the view of a client with access to one conversation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from msgspec.structs import replace

from kit.clients.http_client import HttpClient, SseReader
from kit.clients.modern_client import ASKABLE, ModernHttpClient
from kit.clients.reading import until_state
from kit.clients.requests import request
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.waiting import until
from parley.errors import BadSetting
from parley.ports.store import RoleName
from parley.server.context import Role
from parley.server.tools import TOOLS
from parley.testing import HOLD, ScriptedModel
from parley.wire.mcp import TASKS_EXTENSION

ELICITS: dict[str, Any] = {"elicitation": {}}
ASKS = {"approval_policy": "untrusted", "sandbox": "read-only"}
ROLES: tuple[RoleName, ...] = ("observer", "driver", "approver", "admin")
ERAS = ("2025-11-25", "2026-07-28")
CONFIG = """
approval_policy = "on-request"
sandbox_mode = "workspace-write"
[approvals]
model_may_answer = true
when_nobody = "return"
"""


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    (tmp_path / "roots" / "project").mkdir(parents=True)
    config = f'{CONFIG}[serve]\nroots = ["{tmp_path / "roots"}"]\n'
    async with HttpServer(parley_model, tmp_path / "home", config=config) as server:
        yield server


async def client_of(
    server: HttpServer, role: RoleName, conversation: str | None = None, era: str = ERAS[0], **options: Any
) -> HttpClient:
    make = server.client if era == ERAS[0] else server.modern_client
    return await make(token=await token_of(server, role, conversation), **options)


async def token_of(server: HttpServer, role: RoleName, conversation: str | None = None) -> str:
    return await server.create_token(f"{role}-{uuid4().hex[:8]}", role, conversation=conversation)


async def result_of(client: HttpClient, method: str, **params: Any) -> Any:
    if isinstance(client, ModernHttpClient):
        reply = await client.ask(method, params)
    else:
        reply = await client.post(request(1, method, params), Accept="application/json")
    return reply.json["result"]


async def outcome(client: HttpClient, name: str, **arguments: Any) -> tuple[bool, str]:
    """Call a tool. Return whether it failed, and the code of the error."""
    result = await result_of(client, "tools/call", name=name, arguments=arguments)
    return bool(result.get("isError")), result.get("structuredContent", {}).get("code", "")


@pytest.mark.promises("roles.tools")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("role", ROLES)
async def test_every_tool_checks_the_role_before_anything_else(
    server: HttpServer, role: RoleName, era: str
) -> None:
    client = await client_of(server, role, era=era)
    offered = {one["name"] for one in (await result_of(client, "tools/list"))["tools"]}
    codes = {one.name: (await outcome(client, one.name, nonsense=1))[1] for one in TOOLS}
    allowed = {one.name for one in TOOLS if one.role <= Role[role.upper()]}

    assert offered == allowed
    assert {name for name, code in codes.items() if code == "role_too_low"} == {one.name for one in TOOLS} - allowed


@pytest.mark.promises("roles.settings")
@pytest.mark.parametrize(
    ("settings", "is_allowed"),
    [
        ({"approval_policy": "untrusted"}, True),
        ({"cwd": "roots/project"}, True),
        ({"cwd": "roots"}, True),
        ({"cwd": "roots/project", "sandbox": "read-only", "approval_policy": "untrusted"}, True),
        ({"cwd": "roots/project", "config": {}}, True),
        ({"cwd": "roots/project", "config": {"model": "o3"}}, False),
        ({"cwd": "roots/project", "profile": "fast"}, False),
        ({"cwd": "roots/project", "baseInstructions": ""}, False),
        ({"cwd": "roots/project", "sandbox": "danger-full-access"}, False),
        ({"cwd": "roots/project", "sandboxMode": "danger-full-access"}, False),
        ({"cwd": "roots/project", "approvalPolicy": "never"}, False),
        ({"cwd": "roots/project", "approval_policy": "on-failure"}, False),
        ({"cwd": "home"}, False),
        ({"cwd": "roots/project/../../home"}, False),
        ({"cwd": "roots/link"}, False),
        ({"cwd": "roots-of-others"}, False),
        ({"cwd": "/"}, False),
    ],
)
async def test_a_driver_chooses_only_what_the_server_allows(
    server: HttpServer, tmp_path: Path, settings: dict[str, Any], is_allowed: bool
) -> None:
    os.symlink(tmp_path / "home", tmp_path / "roots" / "link")
    if "cwd" in settings:
        settings = {**settings, "cwd": os.path.join(tmp_path, settings["cwd"])}
    admin = await client_of(server, "admin")
    directory = {"cwd": str(tmp_path / "roots")}
    content = [{"type": "text", "text": "hello"}]
    for era in ERAS:
        driver, conversation = await client_of(server, "driver", era=era), await admin.create()
        send = {"conversation_id": conversation, "content": content}
        created = await outcome(driver, "conversationCreate", **{**directory, **settings})
        sent = await outcome(driver, "conversationSendMessage", **send, **settings)

        assert created == sent == (not is_allowed, "" if is_allowed else "setting_not_allowed"), era


@pytest.mark.promises("roles.settings")
@pytest.mark.parametrize("era", ERAS)
async def test_codex_checks_settings_in_every_spelling(server: HttpServer, tmp_path: Path, era: str) -> None:
    driver = await client_of(server, "driver", era=era)
    cwd = str(tmp_path / "roots")
    codes = [
        (await outcome(driver, "codex", prompt="hi", cwd=cwd, **{name: value}))[1]
        for name, value in (
            ("config", {"sandbox_mode": "danger-full-access"}),
            ("approval-policy", "never"),
            ("approval_policy", "never"),
            ("approvalPolicy", "never"),
            ("sandbox", "danger-full-access"),
            ("sandbox_mode", "danger-full-access"),
            ("sandbox-mode", "danger-full-access"),
            ("base-instructions", "Obey."),
            ("developer-instructions", "Obey."),
            ("compact-prompt", "Forget."),
            ("profile", "other"),
        )
    ]
    misspelt = (await outcome(driver, "codex", prompt="hi", cwd=cwd, sandbox_Mode="danger-full-access"))[1]

    assert codes == ["setting_not_allowed"] * len(codes)
    assert misspelt in ("bad_arguments", "setting_not_allowed")
    assert (await driver.call("conversationsList"))["conversations"] == []


@pytest.mark.promises("roles.settings")
async def test_without_roots_a_driver_gets_the_directory_of_the_server(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        driver = await client_of(server, "driver")
        conversation = await driver.create(cwd=str(server.work))
        refused = await outcome(driver, "conversationCreate", cwd=str(server.work.parent))

        assert (await driver.call("conversationStatus", conversation_id=conversation))["cwd"] == str(server.work)
        assert refused == (True, "setting_not_allowed")


@pytest.mark.promises("roles.bound")
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_with_one_conversation_sees_and_makes_no_other(
    server: HttpServer, parley_model: ScriptedModel, era: str
) -> None:
    admin = await client_of(server, "admin")
    own, other = await admin.create(**ASKS), await admin.create(**ASKS)
    for conversation in (own, other):
        parley_model.says(sh("c1", "touch made"))
        await admin.say(conversation, "word")
        await until_state(admin, conversation, "asking")
    approvals = {
        one["conversation_id"]: one["approval_id"] for one in (await admin.call("approvalsList"))["approvals"]
    }
    bound = await client_of(server, "approver", own, era=era)

    listed = [
        one["conversation_id"] for one in (await bound.call("conversationsList", text="word"))["conversations"]
    ]
    asked = [one["conversation_id"] for one in (await bound.call("approvalsList"))["approvals"]]
    unknown = str(uuid4())
    for name in ("conversationStatus", "conversationRead", "conversationInterrupt", "conversationDelete"):
        codes = [await outcome(bound, name, conversation_id=one) for one in (other, unknown)]
        assert codes == [(True, "unknown_conversation")] * 2, name
    texts = [
        str(await result_of(bound, "tools/call", name="conversationStatus", arguments={"conversation_id": one}))
        for one in (other, unknown)
    ]
    answers = [
        await outcome(bound, "approvalAnswer", approval_id=one, decision="denied")
        for one in (approvals[other], unknown, approvals[own])
    ]
    made = [
        await outcome(bound, "conversationCreate"),
        await outcome(bound, "codex", prompt="hi"),
        await outcome(bound, "conversationFork", conversation_id=own),
    ]

    streamed = await outcome(bound, "conversationStream", conversation_id=other)

    assert (listed, asked, streamed) == ([own], [own], (True, "unknown_conversation"))
    assert texts[0].replace(other, "ID") == texts[1].replace(unknown, "ID")
    assert answers == [(True, "unknown_approval"), (True, "unknown_approval"), (False, "")]
    assert made == [(True, "access_too_narrow")] * 3
    assert {one["conversation_id"] for one in (await admin.call("approvalsList"))["approvals"]} == {other}


@pytest.mark.promises(
    "roles.bound", "resources.access", "completion.conversations", "tasks.access", "attention.access"
)
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_with_one_conversation_finds_no_other_in_any_list(
    server: HttpServer, parley_model: ScriptedModel, era: str
) -> None:
    admin = await client_of(server, "admin")
    tasks = {}
    for name in ("own", "other"):
        parley_model.says("Done.")
        call = {"name": "codex", "arguments": {"prompt": f"a word for {name}"}, "task": {"ttl": 1}}
        tasks[name] = (await admin.post(request(1, "tools/call", call))).json["result"]["task"]["taskId"]
        await until_state(admin, tasks[name].partition(".")[0], "idle")
    own, other = (tasks[name].partition(".")[0] for name in ("own", "other"))
    is_modern = era == ERAS[1]
    capabilities: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}} if is_modern else {}
    bound = await client_of(server, "admin", own, era=era, capabilities=capabilities)
    for conversation in (own, other):  # turns that ended before the token was created count as read
        parley_model.says("Done.")
        await admin.say(conversation, "another word")
        await until_state(admin, conversation, "idle")

    async def code_of(method: str, **params: Any) -> int:
        if isinstance(bound, ModernHttpClient):
            reply = await bound.ask(method, params)
        else:
            reply = await bound.post(request(1, method, params))
        return int(reply.json["error"]["code"])

    ref = {"type": "ref/resource", "uri": "parley://conversations/{id}"}
    completed = await result_of(bound, "completion/complete", ref=ref, argument={"name": "id", "value": ""})
    listed = [one["uri"] for one in (await result_of(bound, "resources/list"))["resources"]]
    index = (await result_of(bound, "resources/read", uri="parley://conversations"))["contents"][0]["text"]
    attention = (await bound.call("attentionList"))["conversations"]
    found = (await bound.call("conversationSearch", text="word"))["messages"]
    address = f"parley://conversations/{other}"
    refused = [
        await code_of("resources/read", uri=address),
        await code_of("resources/read", uri=f"{address}/diff"),
        await code_of("prompts/get", name="review-changes", arguments={"conversation": other}),
        await code_of("tasks/get", taskId=tasks["other"]),
        await code_of("tasks/cancel", taskId=tasks["other"]),
    ]
    listed_tasks = (await result_of(admin, "tasks/list"))["tasks"]
    if not is_modern:
        refused.append(await code_of("resources/subscribe", uri=address))
        refused.append(await code_of("tasks/result", taskId=tasks["other"]))
        seen = (await result_of(bound, "tasks/list"))["tasks"]
        assert seen == [one for one in listed_tasks if one["taskId"].startswith(own)] != listed_tasks

    assert completed["completion"] == {"values": [own], "total": 1, "hasMore": False}
    assert listed == ["parley://conversations", "parley://attention", f"parley://conversations/{own}"]
    assert (own in index, other in index) == (True, False)
    assert [one["conversation_id"] for one in attention] == [own]
    assert {one["conversation_id"] for one in found} == {own}
    unknown = -32602 if is_modern else -32002
    expected = [unknown, unknown, unknown, -32602, -32602, unknown, -32602]
    assert refused == expected[: len(refused)]
    assert (await result_of(bound, "tasks/get", taskId=tasks["own"]))["status"] == "completed"


@pytest.mark.promises("roles.bound", "roles.settings")
async def test_a_client_below_admin_cannot_loosen_a_conversation(server: HttpServer) -> None:
    admin = await client_of(server, "admin")
    own = await admin.create(**ASKS)
    bound, other = await client_of(server, "driver", own), await client_of(server, "driver")
    content = [{"type": "text", "text": "hello"}]
    send = {"conversation_id": own, "content": content}

    for client in (bound, other):
        assert await outcome(client, "conversationSendMessage", **send, sandbox="workspace-write") == (
            True,
            "setting_not_allowed",
        )


@pytest.mark.promises("roles.approvals")
async def test_only_approvers_are_asked(server: HttpServer, parley_model: ScriptedModel) -> None:
    clients = {role: await client_of(server, role, capabilities=ELICITS) for role in ROLES}
    conversation = await clients["admin"].create(**ASKS)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    streams = {role: client.stream() for role, client in clients.items()}
    events = {role: await stream.__aenter__() for role, stream in streams.items()}
    for client in clients.values():
        await client.call("conversationStream", conversation_id=conversation)
    await clients["driver"].say(conversation, "go")
    asked = await events["approver"].wait_for_message("elicitation/create")
    await events["admin"].wait_for_message("elicitation/create")
    await clients["approver"].post({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}})
    for role in ("observer", "driver"):
        await events[role].until(lambda message: "task_complete" in str(message))
        assert all(event.message.get("method") != "elicitation/create" for event in events[role].events)
    for stream in streams.values():
        await stream.__aexit__(None, None, None)


@pytest.mark.promises("roles.approvals", "modern.approvals", "modern.state")
async def test_only_approvers_are_asked_by_results(server: HttpServer, parley_model: ScriptedModel) -> None:
    """At 2026-07-28, the stream of an observer or a driver continues, although its client declares `elicitation`.

    Such a client cannot answer an approval either, even with the state of a client that was asked.
    """
    clients = {
        role: await server.modern_client(token=await token_of(server, role), capabilities=ASKABLE) for role in ROLES
    }
    conversation = await clients["admin"].create(**ASKS)
    parley_model.says(sh("c1", "touch made"))
    parley_model.says("Done.")
    arguments = {"conversation_id": conversation}
    async with AsyncExitStack() as stack:
        streams = {}
        for role, client in clients.items():
            stream = client.call_stream("conversationStream", **arguments)
            streams[role] = await stack.enter_async_context(stream)
            await streams[role].next()
        await clients["driver"].say(conversation, "go")
        asked = (await streams["approver"].rest())[-1]["result"]
        [key] = asked["inputRequests"]
        given = {key: {"action": "accept", "content": {"decision": "approved"}}}
        more = {"inputResponses": given, "requestState": asked["requestState"]}
        refused = [
            await clients[role].ask("tools/call", {"name": "conversationStream", "arguments": arguments, **more})
            for role in ("observer", "driver", "admin")
        ]
        still_open = await clients["admin"].call("approvalsList")
        async with clients["approver"].call_stream("conversationStream", more=more, **arguments) as again:
            await again.wait_for_message("task_complete")
        await streams["observer"].wait_for_message("task_complete")
        await streams["driver"].wait_for_message("task_complete")

    assert [one.json["error"]["code"] for one in refused] == [-32602] * 3
    assert [one["approval_id"] for one in still_open["approvals"]] == [key]


@pytest.mark.promises("approvals.when-nobody")
@pytest.mark.parametrize(("role", "how"), [("driver", "a person has to answer it"), ("approver", "approvalAnswer")])
async def test_a_call_names_only_what_its_client_may_do(
    server: HttpServer, parley_model: ScriptedModel, tmp_path: Path, role: RoleName, how: str
) -> None:
    parley_model.says(sh("c1", "touch made"))
    client = await client_of(server, role, era=ERAS[1])
    arguments = {"prompt": "go", "cwd": str(tmp_path / "roots"), "approval-policy": "untrusted"}
    result = await result_of(client, "tools/call", name="codex", arguments=arguments)
    instructions = (await result_of(client, "server/discover"))["instructions"]

    assert how in result["content"][0]["text"]
    assert ("`approvalAnswer`" in instructions) == (role == "approver")


async def opened(client: HttpClient, conversation: str, stack: AsyncExitStack) -> list[SseReader]:
    """Open every kind of stream that a client can have, and wait until each has received something."""
    if isinstance(client, ModernHttpClient):
        listen = {"notifications": {"resourceSubscriptions": ["parley://conversations"]}}
        opening = [
            client.call_stream("conversationStream", conversation_id=conversation),
            client.call_stream("codex", prompt="go"),
            client.stream_of("subscriptions/listen", listen),
        ]
    else:
        await client.call("conversationStream", conversation_id=conversation)
        opening = [client.stream(), client.codex("go")]
    streams = [await stack.enter_async_context(one) for one in opening]
    for stream in streams:
        await stream.next()
    return streams


@pytest.mark.promises("roles.tokens")
@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("era", ERAS)
async def test_a_token_that_is_no_longer_valid_ends_everything_in_flight(
    server: HttpServer, parley_model: ScriptedModel, era: str, how: str
) -> None:
    admin = await server.client()
    conversation = await admin.create()
    token = await server.create_token("gone", "admin", valid_seconds=3600)
    client = await (server.client if era == ERAS[0] else server.modern_client)(token=token)
    parley_model.says("Hello", HOLD, " there")
    async with AsyncExitStack() as stack:
        streams = await opened(client, conversation, stack)
        await parley_model.wait_until_held()
        [own] = [
            one["conversation_id"]
            for one in (await admin.call("conversationsList"))["conversations"]
            if one["conversation_id"] != conversation
        ]
        await (server.revoke_token("gone") if how == "revoked" else server.let_tokens_expire(3600))
        for stream in streams:
            await stream.rest()
        parley_model.release()
        while "Hello there" not in str(await admin.call("conversationRead", conversation_id=own, wait_seconds=20)):
            pass

        said = str([event.message for stream in streams for event in stream.events])
        assert ("there" in said, (await client.post(request(9, "ping"))).status) == (False, 401)


@pytest.mark.promises("roles.tokens")
async def test_a_revoked_token_ends_a_request_that_waits(server: HttpServer) -> None:
    token = await server.create_token("gone", "admin")
    client = await server.modern_client(token=token)
    arguments = {"conversation_id": await client.create(), "wait_seconds": 30}
    seq = (await client.call("conversationRead", conversation_id=arguments["conversation_id"]))["seq"]
    params = {"name": "conversationRead", "arguments": {**arguments, "after": seq}}
    waiting = asyncio.create_task(client.ask("tools/call", params))
    await until(lambda: server.service.client_count == 1)
    await server.revoke_token("gone")

    assert (await waiting).status == 401


@pytest.mark.promises("roles.tokens")
@pytest.mark.parametrize("era", ERAS)
async def test_a_token_that_is_valid_again_is_accepted(server: HttpServer, era: str) -> None:
    token = await server.create_token("back", "admin", valid_seconds=3600)
    client = await (server.client if era == ERAS[0] else server.modern_client)(token=token)
    await server.let_tokens_expire(3600)
    expired = (await client.post(request(8, "ping"))).status
    await server.let_tokens_expire(-3600)
    if era == ERAS[0]:
        client = await server.client(token=token)

    assert (expired, len(await client.create())) == (401, 36)


async def test_new_settings_do_not_expose_the_server(parley_model: ScriptedModel, tmp_path: Path) -> None:
    config = '[serve]\nhost = "0.0.0.0"\npublic_url = "https://example.com"\n'
    async with HttpServer(parley_model, tmp_path / "home", config=config) as server:
        settings = server.server.loader.serve_settings()
        server.service.apply(settings)
        with pytest.raises(BadSetting, match="is not loopback"):
            server.service.apply(replace(settings, public_url=None))
