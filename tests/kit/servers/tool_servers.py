"""Tool servers for tests of the pool: programs, an HTTP server on the loopback, and a turn that uses them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from aiohttp import web

from kit.builders.transcript import RecordingTranscript
from kit.models.raw_provider import settings
from kit.servers.tool_server import Message, ToolServerProgram
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.config.types import ToolServer
from parley.conversation.records import CallItem
from parley.ports.tools import Action, RejectedByPolicy, ToolContext, Verdict
from parley.tools.servers import Lease, ServerPool, Timing
from parley.wire.ids import CallId

__all__ = [
    "ENVIRON",
    "SLOW_TIMING",
    "TIMEOUT_SECONDS",
    "Loopback",
    "Spoil",
    "call_item",
    "call_text",
    "closing",
    "context",
    "marker",
    "nothing_running",
    "program",
    "running",
    "text",
]

ENVIRON: Final = {"HOME": "/nowhere", "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "SECRET_KEY": "hidden"}
"""The environment of the pools in tests."""

SLOW_TIMING: Final = Timing(answer_seconds=TIMEOUT_SECONDS)
"""The timing of the pools in tests. A program may start slowly on a busy computer, so the timeouts are long."""

PROGRAM: Final = str(Path(__file__).with_name("tool_server.py"))


def marker() -> str:
    """Return a unique word that identifies the processes of one test."""
    return f"marker-{uuid4()}"


def program(name: str, mode: str = "serve", *, mark: str = "", env: dict[str, str] | None = None) -> ToolServer:
    # Because of -P, the directory of the program, which has modules with names of the standard library, is not
    # searched.
    return ToolServer(
        name=name, command=sys.executable, args=("-P", PROGRAM, mode, *([mark] if mark else [])), env=env or {}
    )


def running(mark: str) -> int:
    """Return the number of processes that have the marker in their command line, without zombies."""
    found = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found += mark.encode() in (folder / "cmdline").read_bytes()
            except OSError:
                continue  # the process ended in the meantime
    return found


async def nothing_running(mark: str) -> None:
    """Wait until no process has the marker."""
    await until(lambda: running(mark) == 0)


def text(result: dict[str, Any]) -> str:
    """Return the text of a result that consists of one text."""
    (block,) = result["content"]
    assert block["type"] == "text"
    return str(block["text"])


def _ignore(done: float, total: float | None, message: str | None) -> None:
    pass


async def call_text(lease: Lease, name: str, arguments: dict[str, Any] | None = None) -> str:
    tool = lease.find(name)
    assert tool is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return text(await tool.call(arguments, progress=_ignore))


# --- a turn ------------------------------------------------------------------------------


async def _refuse(action: Action) -> Verdict:
    return RejectedByPolicy(why="no client was asked")


def context(transcript: RecordingTranscript) -> ToolContext:
    return ToolContext(settings=settings(), transcript=transcript, authorize=_refuse)


def call_item(name: str, arguments: str, call_id: str = "c1") -> CallItem:
    return CallItem(call_id=CallId(call_id), name=name, arguments=arguments)


# --- an address --------------------------------------------------------------------------


Spoil = Callable[[web.Request, Message], Awaitable[web.StreamResponse]]


class Loopback:
    """A tool server on the loopback over streamable HTTP. Requires a bearer token if `token` is set."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token
        self._program = ToolServerProgram(self._route)
        self._streams: dict[Any, asyncio.Queue[Message]] = {}
        self._session: str | None = None
        self.sessions = 0
        self.farewells = 0
        self.seen_headers: list[dict[str, str]] = []
        self.seen_tokens: list[str | None] = []
        self.redirect_to: str | None = None
        self.falls_silent = False
        """True if the server answers no request after `initialize`."""
        self.spoils: dict[str, Spoil] = {}
        """Functions that replace the answers of the server, by method of MCP or HTTP."""
        self.seen_encodings: set[str | None] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Start the server and yield its URL."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/mcp", self._post)
        app.router.add_post("/old", self._redirect)
        app.router.add_get("/mcp", self._get, allow_head=False)
        app.router.add_delete("/mcp", self._delete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        finally:
            await runner.cleanup()

    def forget_session(self) -> None:
        self._session = None

    def _route(self, message: Message) -> None:
        """Pass a message to the request that it belongs to."""
        request_id = message.get("id", (message.get("params") or {}).get("progressToken"))
        if request_id in self._streams:
            self._streams[request_id].put_nowait(message)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        self.seen_tokens.append(request.headers.get("authorization"))
        self.seen_headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.redirect_to is not None:
            return web.Response(status=307, headers={"location": self.redirect_to})
        if self._token is not None and request.headers.get("authorization") != f"Bearer {self._token}":
            return web.Response(status=401)
        self.seen_encodings.add(request.headers.get("accept-encoding"))
        message = await request.json()
        headers = {}
        if message["method"] == "initialize":
            self.sessions += 1
            self._session = headers["mcp-session-id"] = f"session-{self.sessions}"
        elif request.headers.get("mcp-session-id") != self._session:
            return web.Response(status=404)
        if message["method"] in self.spoils:
            return await self.spoils[message["method"]](request, message)
        if "id" not in message:
            self._program.answer(message)
            return web.Response(status=202)
        if self.falls_silent and message["method"] != "initialize":
            await asyncio.Event().wait()
        stream = self._streams[message["id"]] = asyncio.Queue()
        self._program.answer(message)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
        await response.prepare(request)
        while True:
            one = await stream.get()
            await response.write(b"event: message\ndata: " + web.json_response(one).body + b"\n\n")  # type: ignore[operator] # a body of bytes
            if "id" in one:
                break
        del self._streams[message["id"]]
        return response

    async def _redirect(self, request: web.Request) -> web.Response:
        return web.Response(status=308, headers={"location": "/mcp"})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if "GET" in self.spoils:
            return await self.spoils["GET"](request, {})
        return web.Response(status=405)

    async def _delete(self, request: web.Request) -> web.Response:
        self.farewells += 1
        if self.falls_silent:
            await asyncio.Event().wait()
        return web.Response()


@asynccontextmanager
async def closing(pool: ServerPool) -> AsyncIterator[ServerPool]:
    try:
        yield pool
    finally:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await pool.close()
