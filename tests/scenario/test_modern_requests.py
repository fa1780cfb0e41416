"""Requests at 2026-07-28: each request contains its version, and the server keeps no state between requests.

Tests `parley.server.modern.requests`, `parley.server.modern.results`, `parley.server.mcp_settings` and
`parley.server.http.stateless`, `parley.server.http.repeated_headers`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.modern_client import ModernHttpClient, ModernWireClient, modern_meta, speaking_modern
from kit.clients.requests import initialize
from kit.servers.http_server import HttpServer
from parley.testing import ScriptedModel, check_message

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LEGACY = ("initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "nonsense")


@pytest_asyncio.fixture
async def client(parley_model: ScriptedModel) -> AsyncIterator[ModernWireClient]:
    async with speaking_modern(parley_model) as client:
        yield client


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


@pytest_asyncio.fixture
async def http(server: HttpServer) -> AsyncIterator[ModernHttpClient]:
    async with ModernHttpClient(server.url, token=server.token) as client:
        yield client


async def error_of(client: ModernWireClient, request_id: int) -> Any:
    message = await client.read()
    assert message["id"] == request_id
    return message["error"]


# --- on a pipe -----------------------------------------------------------------------------


@pytest.mark.promises("modern.discover")
async def test_discover_says_what_the_server_serves(client: ModernWireClient) -> None:
    result = await client.result_of(client.request("server/discover", None))

    assert result["resultType"] == "complete"
    assert result["supportedVersions"][:2] == ["2026-07-28", "2025-11-25"]
    assert "tools" in result["capabilities"]
    assert "logging" not in result["capabilities"]
    assert result["_meta"][SERVER_INFO]["name"] == "parley"
    assert (result["ttlMs"] > 0, result["cacheScope"]) == (True, "private")
    assert "codex" in result["instructions"]


@pytest.mark.promises("modern.results")
async def test_results_have_their_type_and_lists_can_be_cached(client: ModernWireClient) -> None:
    listed = [await client.result_of(client.request("tools/list", None)) for _ in range(2)]
    created = await client.result_of(client.call("conversationCreate", prompt="", cwd=str(client.work)))

    assert listed[0] == listed[1]
    assert {"codex", "conversationStream"} <= {one["name"] for one in listed[0]["tools"]}
    assert (listed[0]["resultType"], listed[0]["cacheScope"]) == ("complete", "private")
    assert (created["resultType"], SERVER_INFO in created["_meta"], "ttlMs" in created) == ("complete", True, False)


@pytest.mark.promises("modern.checks")
@pytest.mark.parametrize("missing", [VERSION, CAPABILITIES])
async def test_an_incomplete_meta_is_refused(client: ModernWireClient, missing: str) -> None:
    meta = {**modern_meta(), missing: 5}
    refused = await error_of(client, client.legacy("tools/list", {"_meta": meta}))

    assert (refused["code"], refused["data"]["code"]) == (-32602, "invalid_params")


@pytest.mark.promises("modern.checks")
async def test_a_missing_capability_object_is_refused(client: ModernWireClient) -> None:
    meta = modern_meta()
    del meta[CAPABILITIES]

    assert (await error_of(client, client.legacy("tools/list", {"_meta": meta})))["code"] == -32602


@pytest.mark.promises("modern.checks")
@pytest.mark.parametrize("version", ["2030-01-01", "2025-11-25"])
async def test_another_version_is_refused_with_the_served_ones(client: ModernWireClient, version: str) -> None:
    refused = await error_of(client, client.request("tools/list", {"_meta": {VERSION: version}}))

    assert (refused["code"], refused["data"]["requested"]) == (-32022, version)
    assert refused["data"]["supported"][0] == "2026-07-28"


@pytest.mark.promises("modern.methods")
@pytest.mark.parametrize("method", LEGACY)
async def test_methods_of_earlier_versions_do_not_exist(client: ModernWireClient, method: str) -> None:
    refused = await error_of(client, client.request(method, {"level": "info", "uri": "x"}))

    assert refused["code"] == -32601


@pytest.mark.promises("modern.per-request")
async def test_both_eras_share_a_pipe_and_nothing_is_remembered(client: ModernWireClient) -> None:
    """A client may call `server/discover`, then initialize, and then mix requests of both eras."""
    await client.result_of(client.request("server/discover", None))
    plain = await client.result_of(client.legacy("tools/list", {}))
    begun = await client.result_of(client.legacy("initialize", initialize()["params"]))
    modern = await client.result_of(client.request("tools/list", None))
    legacy = await client.result_of(client.legacy("tools/list", {}))
    unknown = await error_of(client, client.legacy("server/discover", {}))

    assert begun["protocolVersion"] == "2025-06-18"
    assert plain == legacy
    assert ("resultType" in legacy, "resultType" in begun, "resultType" in modern) == (False, False, True)
    assert (unknown["code"], await client.result_of(client.legacy("ping", {}))) == (-32601, {})


@pytest.mark.promises("modern.per-request")
async def test_without_the_setting_the_era_is_unknown(parley_model: ScriptedModel) -> None:
    async with speaking_modern(parley_model, config="[mcp]\nmodern = false\n") as client:
        refused = await error_of(client, client.request("server/discover", None))
        listed = await client.result_of(client.request("tools/list", None))

    assert (refused["code"], "resultType" in listed) == (-32601, False)


@pytest.mark.promises("modern.no-log")
async def test_a_stream_as_log_messages_is_refused(client: ModernWireClient) -> None:
    conversation = await client.create()
    result = await client.result_of(client.stream(conversation, **{"as": "log"}))

    assert (result["isError"], result["structuredContent"]["code"]) == (True, "no_log_messages")


# --- over HTTP -----------------------------------------------------------------------------


@pytest.mark.promises("modern.http")
async def test_a_post_needs_no_session(server: HttpServer, http: ModernHttpClient) -> None:
    discovered = await http.ask("server/discover")
    created = await http.create()
    listed = await http.call("conversationsList")
    ignored = await http.ask("tools/list", Mcp_Session_Id="nothing", Last_Event_ID="nothing")

    assert (discovered.status, discovered.json["result"]["resultType"]) == (200, "complete")
    assert [one["conversation_id"] for one in listed["conversations"]] == [created]
    assert (ignored.status, "Mcp-Session-Id" in ignored.headers, len(server.service.sessions)) == (200, False, 0)


@pytest.mark.promises("modern.http")
@pytest.mark.parametrize("method", LEGACY)
async def test_an_unknown_method_is_not_found(http: ModernHttpClient, method: str) -> None:
    reply = await http.ask(method)

    assert (reply.status, reply.json["error"]["code"], reply.json["id"]) == (404, -32601, 1)


@pytest.mark.promises("modern.headers")
@pytest.mark.parametrize(
    ("changed", "is_served"),
    [
        ({}, True),
        ({"Mcp_Method": None}, False),
        ({"Mcp_Method": "TOOLS/CALL"}, False),
        ({"Mcp_Name": None}, False),
        ({"Mcp_Name": "codex"}, False),
        ({"Mcp_Name": "  conversationsList "}, True),
        ({"Mcp_Name": "=?base64?Y29udmVyc2F0aW9uc0xpc3Q=?="}, True),
        ({"Mcp_Name": "=?base64?Y29udmVyc2F0aW9uc0xpc3Q?="}, False),
        ({"MCP_Protocol_Version": None}, False),
        ({"MCP_Protocol_Version": "2025-11-25"}, False),
    ],
)
async def test_headers_repeat_the_body(http: ModernHttpClient, changed: dict[str, Any], is_served: bool) -> None:
    reply = await http.ask("tools/call", {"name": "conversationsList", "arguments": {}}, **changed)

    assert reply.json["id"] == 1
    if is_served:
        assert (reply.status, "result" in reply.json) == (200, True)
    else:
        assert (reply.status, reply.json["error"]["code"]) == (400, -32020)


@pytest.mark.promises("modern.checks")
@pytest.mark.promises("modern.http")
async def test_there_are_neither_sessions_nor_arrays(http: ModernHttpClient) -> None:
    version = "2026-07-28"
    got = await http.send("GET", MCP_Protocol_Version=version, Accept="text/event-stream")
    deleted = await http.send("DELETE", MCP_Protocol_Version=version)
    listed = await http.post([http.message("tools/list")], MCP_Protocol_Version=version)

    assert [(one.status, one.headers["Allow"]) for one in (got, deleted)] == [(405, "POST")] * 2
    assert (listed.status, listed.json["error"]["data"]["code"]) == (400, "array_not_allowed")


@pytest.mark.parametrize(
    ("params", "header", "number"),
    [
        ({}, "2026-07-28", -32602),
        ({"_meta": {CAPABILITIES: {}}}, "2026-07-28", -32602),
        ({"_meta": {VERSION: "2026-07-28"}}, "2026-07-28", -32602),
        ({"_meta": modern_meta(version="2030-01-01")}, "2030-01-01", -32022),
        ({"_meta": modern_meta(version="2030-01-01")}, "2026-07-28", -32020),
    ],
)
async def test_wrong_requests_have_the_status_400(
    http: ModernHttpClient, params: Any, header: str, number: int
) -> None:
    message = {"jsonrpc": "2.0", "id": "x", "method": "server/discover", "params": params}
    reply = await http.post(message, MCP_Protocol_Version=header, Mcp_Method="server/discover")
    check_message(reply.body)

    assert (reply.status, reply.json["error"]["code"], reply.json["id"]) == (400, number, "x")


@pytest.mark.promises("modern.http")
async def test_a_prompt_with_the_name_of_a_tool_is_answered_without_a_stream(http: ModernHttpClient) -> None:
    refused = await http.ask("prompts/get", {"name": "codex"}, Accept="application/json")

    assert refused.status == 400
    assert refused.json["error"]["code"] == -32602
