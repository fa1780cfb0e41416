"""HTTP tool servers with invalid answers: the call fails at once and names the reason."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from aiohttp import web

from kit.servers.tool_server import Message
from kit.servers.tool_servers import ENVIRON, SLOW_TIMING, TIMEOUT_SECONDS, Loopback, Spoil, call_text, closing
from kit.system.waiting import until
from parley.config.types import ToolServer
from parley.rpc.streamable_http import REOPEN_SECONDS
from parley.tools.errors import ToolServerFailed
from parley.tools.servers import Lease, ServerPool

LOST: Final = "the connection to the tool server was lost"
UNREADABLE: Final = "its response cannot be read"
TOO_LONG: Final = "its response is longer than 16777216 bytes"

MEBIBYTE: Final = 1024 * 1024
MANY: Final = 400
"""The number of mebibytes that the server offers. Parley reads only a few of them."""


@asynccontextmanager
async def far(loopback: Loopback) -> AsyncIterator[Lease]:
    """Return the tools of an HTTP tool server."""
    async with (
        loopback.open() as url,
        closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
        pool.lease([ToolServer(name="far", url=url)]) as lease,
    ):
        yield lease


def answer(message: Message, text: str = "fine", **more: Any) -> bytes:
    result = {"content": [{"type": "text", "text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result, **more}).encode()


def status(code: int, body: bytes = b"nothing to see", content_type: str = "text/plain") -> Spoil:
    async def spoil(request: web.Request, message: Message) -> web.StreamResponse:
        return web.Response(status=code, body=body, content_type=content_type)

    return spoil


def body(content: bytes, content_type: str = "application/json") -> Spoil:
    return status(200, content, content_type)


async def of_another_request(request: web.Request, message: Message) -> web.StreamResponse:
    return web.Response(body=answer({"id": 999}), content_type="application/json")


async def a_notification(request: web.Request, message: Message) -> web.StreamResponse:
    return web.json_response({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


async def an_error_of_its_own(request: web.Request, message: Message) -> web.StreamResponse:
    error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32602, "message": "no"}}
    return web.json_response(error, status=400)


async def cut_off(request: web.Request, message: Message) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def packed(content_type: str) -> Spoil:
    async def spoil(request: web.Request, message: Message) -> web.StreamResponse:
        whole = answer(message)
        if content_type == "text/event-stream":
            whole = b"data: " + whole + b"\n\n"
        headers = {"content-type": content_type, "content-encoding": "gzip"}
        return web.Response(body=gzip.compress(whole), headers=headers)

    return spoil


def in_one_event(content: bytes) -> Spoil:
    return body(b"event: message\ndata: " + content + b"\n\n", "text/event-stream")


@pytest.mark.parametrize(
    ("spoil", "detail"),
    [
        pytest.param(status(401), "the server answered 401 Unauthorized", id="401"),
        pytest.param(status(500), "the server answered 500 Internal Server Error", id="500"),
        pytest.param(
            status(503, b"{", "application/json"), "the server answered 503 Service Unavailable", id="503"
        ),
        pytest.param(status(202, b""), "the server answered 202 Accepted", id="202"),
        pytest.param(status(204, b""), UNREADABLE, id="204"),
        pytest.param(body(b"<html>", "text/html"), UNREADABLE, id="html"),
        pytest.param(body(b"{nope"), UNREADABLE, id="not JSON"),
        pytest.param(body(b""), UNREADABLE, id="empty"),
        pytest.param(body(b"[1]"), UNREADABLE, id="a list"),
        pytest.param(of_another_request, UNREADABLE, id="another id"),
        pytest.param(a_notification, UNREADABLE, id="a notification"),
        pytest.param(packed("application/json"), UNREADABLE, id="packed"),
        pytest.param(packed("text/event-stream"), UNREADABLE, id="packed events"),
        pytest.param(body(b" " * (16 * MEBIBYTE + 1)), TOO_LONG, id="long"),
        pytest.param(in_one_event(b"x" * (16 * MEBIBYTE + 1)), TOO_LONG, id="a long event"),
        pytest.param(in_one_event(b"{nope"), UNREADABLE, id="an event that is not JSON"),
        pytest.param(body(b": hello\n\n", "text/event-stream"), LOST, id="no event"),
        pytest.param(cut_off, LOST, id="cut off"),
        pytest.param(an_error_of_its_own, None, id="an error of its own"),
    ],
)
async def test_a_call_without_an_answer_fails_at_once_and_the_next_one_works(
    spoil: Spoil, detail: str | None
) -> None:
    loopback = Loopback()
    async with far(loopback) as lease:
        loopback.spoils["tools/call"] = spoil
        with pytest.raises(ToolServerFailed) as failure:
            await call_text(lease, "far__add", {"a": 1, "b": 2})
        loopback.spoils.clear()

        why = "" if detail is None else f": {detail}"
        assert str(failure.value) == f"tool call error: tool call failed for `far/add`{why}"
        assert await call_text(lease, "far__add", {"a": 1, "b": 2}) == "3"
        assert loopback.seen_encodings == {"identity"}


async def test_of_an_endless_answer_little_is_taken() -> None:
    sent = 0
    left = asyncio.Event()

    async def spoil(request: web.Request, message: Message) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        try:
            while sent < MANY:
                await response.write(b" " * MEBIBYTE)
                sent += 1
        except ConnectionError:
            left.set()
        return response

    loopback = Loopback()
    async with far(loopback) as lease:
        loopback.spoils["tools/call"] = spoil
        with pytest.raises(ToolServerFailed) as failure:
            await call_text(lease, "far__add", {"a": 1, "b": 2})
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await left.wait()

    assert failure.value.detail == TOO_LONG
    assert sent < 64


async def test_a_call_does_not_get_the_error_of_another_call() -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def spoil(request: web.Request, message: Message) -> web.StreamResponse:
        if message["params"]["name"] == "fail":
            arrived.set()
            await go.wait()
            return web.Response(body=b"{nope", content_type="application/json")
        await arrived.wait()
        return web.Response(status=403)

    async def detail(tool: str) -> str | None:
        with pytest.raises(ToolServerFailed) as failure:
            await call_text(lease, tool)
        return failure.value.detail

    loopback = Loopback()
    async with far(loopback) as lease:
        loopback.spoils["tools/call"] = spoil
        slow = asyncio.create_task(detail("far__fail"))
        refused = await detail("far__env")
        go.set()

        assert (refused, await slow) == ("the server answered 403 Forbidden", UNREADABLE)


async def test_a_stream_that_ends_at_once_is_not_opened_at_once_forever() -> None:
    opened = 0

    async def spoil(request: web.Request, message: Message) -> web.StreamResponse:
        nonlocal opened
        opened += 1
        return web.Response(body=b"id: 1\nretry: 0\ndata:\n\n", content_type="text/event-stream")

    loopback = Loopback()
    loopback.spoils["GET"] = spoil
    clock = asyncio.get_running_loop().time
    began_at = clock()
    async with far(loopback) as lease:
        await until(lambda: opened == 3)
        assert await call_text(lease, "far__add", {"a": 1, "b": 2}) == "3"

    assert clock() - began_at >= 2 * REOPEN_SECONDS


async def test_an_answer_whose_stream_is_cut_is_read_from_its_last_id() -> None:
    last_ids: list[str | None] = []
    asked: list[Message] = []

    async def cut(request: web.Request, message: Message) -> web.StreamResponse:
        asked.append(message)
        return web.Response(body=b"id: 7\nretry: 0\ndata:\n\n", content_type="text/event-stream")

    async def rest(request: web.Request, message: Message) -> web.StreamResponse:
        last_ids.append(request.headers.get("last-event-id"))
        if last_ids[-1] is None:
            return web.Response(status=405)
        if len(last_ids) == 2:
            return web.Response(body=b"id: 8\n\n", content_type="text/event-stream")
        return web.Response(body=b"data: " + answer(asked[0]) + b"\n\n", content_type="text/event-stream")

    loopback = Loopback()
    loopback.spoils.update({"tools/call": cut, "GET": rest})
    async with far(loopback) as lease:
        await until(lambda: last_ids == [None])
        assert await call_text(lease, "far__add", {"a": 1, "b": 2}) == "fine"

    assert last_ids == [None, "7", "8"]
    assert len(asked) == 1


async def test_tools_that_changed_are_announced_on_the_stream_without_a_request() -> None:
    async def spoil(request: web.Request, message: Message) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await listed.wait()
        await response.write(b"data: garbage\n\n: comment\n\nevent: ping\ndata: x\n\n")
        await response.write(b'data: {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n\n')
        await left.wait()
        return response

    listed, left = asyncio.Event(), asyncio.Event()
    loopback = Loopback()
    loopback.spoils["GET"] = spoil
    async with far(loopback) as lease:
        before = lease.specs()
        listed.set()
        await until(lambda: lease.specs() is not before)
        left.set()

    assert lease.specs() == before


async def test_a_redirect_within_the_origin_is_followed() -> None:
    loopback = Loopback(token="s3cret")
    async with loopback.open() as url, closing(ServerPool({"TOKEN": "s3cret"}, timing=SLOW_TIMING)) as pool:
        server = ToolServer(name="far", url=url.replace("/mcp", "/old"), bearer_token_env_var="TOKEN")
        async with pool.lease([server]) as lease:
            assert await call_text(lease, "far__add", {"a": 1, "b": 2}) == "3"


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
@pytest.mark.parametrize(
    ("spoil", "detail"),
    [
        pytest.param(status(403), "the server answered 403 Forbidden", id="403"),
        pytest.param(body(b"<html>", "text/html"), UNREADABLE, id="html"),
        pytest.param(body(b"{nope"), UNREADABLE, id="not JSON"),
        pytest.param(in_one_event(b"{nope"), UNREADABLE, id="an event that is not JSON"),
        pytest.param(of_another_request, UNREADABLE, id="another id"),
    ],
)
async def test_why_a_far_server_did_not_start_is_said_in_a_few_words(
    method: str, spoil: Spoil, detail: str
) -> None:
    loopback = Loopback()
    loopback.spoils[method] = spoil
    async with (
        loopback.open() as url,
        closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        failed = await pool.start([ToolServer(name="far", url=url)])

    assert failed == (("far", f"MCP client for `far` failed to start: {detail}"),)


@pytest.mark.parametrize(("method", "limit"), [("initialize", MEBIBYTE), ("tools/list", 16 * MEBIBYTE)])
@pytest.mark.parametrize("spoils", [body, in_one_event], ids=["body", "event"])
async def test_a_first_answer_that_is_too_long_names_the_limit(
    method: str, limit: int, spoils: Callable[[bytes], Spoil]
) -> None:
    loopback = Loopback()
    loopback.spoils[method] = spoils(b" " * (limit + 1))
    async with (
        loopback.open() as url,
        closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        failed = await pool.start([ToolServer(name="far", url=url)])

    assert failed == (("far", f"MCP client for `far` failed to start: its response is longer than {limit} bytes"),)


async def test_an_answer_in_an_event_is_counted_from_its_own_beginning() -> None:
    async def spoil(request: web.Request, message: Message) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 900}}
        for _ in range(20):
            await response.write(b"data: " + json.dumps(note).encode() + b"\r\n\r")
            await response.write(b"\n")
        await response.write(b"data: " + answer(message) + b"\n\n")
        return response

    loopback = Loopback()
    loopback.spoils["tools/call"] = spoil
    async with loopback.open() as url, closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool:
        server = ToolServer(name="far", url=url, max_answer_bytes=8192)
        async with pool.lease([server]) as lease:
            assert await call_text(lease, "far__add", {"a": 1, "b": 2}) == "fine"


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_an_answer_of_the_wrong_shape_is_no_start(method: str) -> None:
    async def spoil(request: web.Request, message: Message) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": 5}})

    loopback = Loopback()
    loopback.spoils[method] = spoil
    async with (
        loopback.open() as url,
        closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        failed = await pool.start([ToolServer(name="far", url=url)])

    assert failed == (("far", f"MCP client for `far` failed to start: {UNREADABLE}"),)
