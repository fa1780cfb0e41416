"""Tool servers with very large answers: the memory that they need, and the output for the model."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from kit.clients.codex_calls import speaking
from kit.servers.tool_servers import Loopback, Spoil
from kit.system.memory import memory_bytes
from parley.testing import Call, ScriptedModel

pytestmark = pytest.mark.child_process

MEBIBYTE: Final = 1024 * 1024
FAILED: Final = "tool call error: tool call failed for `x/answer`: "

PROGRAM: Final = r"""
import json, sys
MEBIBYTE = 1024 * 1024
out = sys.stdout.buffer

def empty_objects(count):
    return b"[" + b",".join([b"{}"] * count) + b"]"

def answer(kind, request_id):
    if kind == "a request":
        out.write(b'{"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", ')
        out.write(b'"params": {"maxTokens": 1, "messages": ' + empty_objects(200_000) + b"}}\n")
        out.flush()
        sys.stdin.readline()  # the refusal
    if kind == "a notification":
        out.write(b'{"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": ')
        out.write(empty_objects(200_000) + b"}\n")
    out.write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": ' % request_id)
    if kind == "text":
        out.write(b'[{"type": "text", "text": "')
        for _ in range(200):
            out.write(b"x" * MEBIBYTE)
        out.write(b'"}]')
    elif kind == "values":
        out.write(empty_objects(5_000_000))
    elif kind == "unfit":
        out.write(empty_objects(300_000))
    else:
        out.write(b'[{"type": "text", "text": "fine"}]')
    out.write(b"}}\n")
    out.flush()

for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "huge", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [{"name": "answer", "inputSchema": {"type": "object", "properties": {}}}]}
        case "tools/call":
            answer(message["params"]["arguments"]["kind"], message["id"])
            continue
        case _:
            continue
    out.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n")
    out.flush()
"""


HUGE: Final = {
    "text": (b'[{"type": "text", "text": "', *([b"x" * MEBIBYTE] * 64), b'"}]'),
    "values": (b"[{}", *([b",{}" * 100_000] * 30), b"]"),
}
"""The contents of huge answers over HTTP, in pieces."""


@pytest.mark.promises("servers.bounded")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("text", f"{FAILED}its response is longer than {16 * MEBIBYTE} bytes"),
        pytest.param("unfit", f"{FAILED}its response cannot be read", marks=pytest.mark.long),
        pytest.param("values", f"{FAILED}its response has more than 2000000 values", marks=pytest.mark.long),
        pytest.param("a request", '[{"text":"fine","type":"text"}]', marks=pytest.mark.long),
        ("a notification", '[{"text":"fine","type":"text"}]'),
    ],
)
async def test_a_huge_answer_costs_little_memory(
    parley_model: ScriptedModel, tmp_path: Path, kind: str, expected: str
) -> None:
    script = tmp_path / "huge.py"
    script.write_text(PROGRAM)
    parley_model.says(Call("x__answer", {"kind": "small"}, call_id="c1"))
    parley_model.says(Call("x__answer", {"kind": kind}, call_id="c2"))
    config = f"[mcp_servers.x]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([str(script)])}\n"
    async with speaking(parley_model, config=config) as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"
        peak = memory_bytes(wire.raw.pid, "VmHWM") / 1024**2

    outputs = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
    assert outputs == ['[{"text":"fine","type":"text"}]', expected]
    assert peak < 300


def huge_answers(kind: str, media_type: str) -> Spoil:
    """Return the answers of a tool server over HTTP. The first answer is small, and all others are huge."""
    bodies = [[b'[{"type": "text", "text": "fine"}]'], [*HUGE[kind]]]

    async def answer(request: web.Request, message: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": media_type})
        await response.prepare(request)
        is_stream = media_type == "text/event-stream"
        with suppress(ConnectionError):  # the client has read enough
            await response.write(b"data: " * is_stream)
            await response.write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": ' % message["id"])
            for piece in bodies.pop(0):
                await response.write(piece)
            await response.write(b"}}" + b"\n\n" * is_stream)
        return response

    return answer


@pytest.mark.promises("servers.bounded")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("text", f"its response is longer than {16 * MEBIBYTE} bytes"),
        ("values", "its response has more than 2000000 values"),
    ],
)
async def test_a_huge_answer_over_http_costs_little_memory(
    parley_model: ScriptedModel, kind: str, expected: str, media_type: str
) -> None:
    server = Loopback()
    server.spoils["tools/call"] = huge_answers(kind, media_type)
    parley_model.says(Call("x__add", {"a": 1, "b": 2}, call_id="c1"))
    parley_model.says(Call("x__add", {"a": 1, "b": 2}, call_id="c2"))
    async with (
        server.open() as url,
        speaking(parley_model, config=f'[mcp_servers.x]\nurl = "{url}"\n') as wire,
    ):
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"
        peak = memory_bytes(wire.raw.pid, "VmHWM") / 1024**2

    outputs = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
    assert outputs == [
        '[{"text":"fine","type":"text"}]',
        f"tool call error: tool call failed for `x/add`: {expected}",
    ]
    assert peak < 300


@pytest.mark.promises("servers.bounded")
async def test_the_limit_of_an_answer_is_a_setting(parley_model: ScriptedModel, tmp_path: Path) -> None:
    script = tmp_path / "huge.py"
    script.write_text(PROGRAM)
    parley_model.says(Call("x__answer", {"kind": "unfit"}, call_id="c1"))
    config = (
        f"[mcp_servers.x]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([str(script)])}\n"
        "max_answer_bytes = 100000\n"
    )
    async with speaking(parley_model, config=config) as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"

    (output,) = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
    assert output == f"{FAILED}its response is longer than 100000 bytes"
