"""A tool server that uses the official library: `python official_tool_server.py TRANSPORT ERA`.

TRANSPORT is `stdio`, or `http`, which prints its URL. ERA is `legacy` or `modern`. A `modern` server refuses
`initialize`, as a server does that supports only version 2026-07-28.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

__all__ = ["official_program", "official_url"]

PROGRAM: Final = str(Path(__file__))
REFUSAL: Final = {"code": -32022, "message": "Unsupported protocol version", "data": {"supported": ["2026-07-28"]}}


def official_program(era: str) -> tuple[str, ...]:
    """Return the command of a server on stdio.

    Because of `-P`, modules in its directory do not hide modules of the standard library.
    """
    return (sys.executable, "-P", PROGRAM, "stdio", era)


@asynccontextmanager
async def official_url(era: str) -> AsyncIterator[str]:
    """Start a server and yield its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", PROGRAM, "http", era), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


# --- the program -------------------------------------------------------------------------


def _server() -> MCPServer[Any]:
    from mcp.server.mcpserver import Context, Image, MCPServer
    from pydantic import Field

    globals().update(Context=Context, Field=Field)  # the library reads the annotations there
    server: MCPServer[Any] = MCPServer("official")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds two integers."""
        return a + b

    @server.tool()
    async def steps(count: int, context: Context[Any, Any]) -> str:
        """Reports progress."""
        for step in range(count):
            await context.report_progress(step + 1, count, f"step {step + 1}")
        return "done"

    @server.tool()
    def locate(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """Has an argument that is repeated in a header."""
        return region

    @server.tool()
    def picture() -> Any:
        """Returns an image."""
        return Image(data=b"\0\0\0", format="png")

    @server.tool()
    def fail() -> str:
        """Fails."""
        raise ValueError("as asked")

    @server.tool()
    async def wait() -> str:
        """Never ends."""
        await asyncio.Event().wait()
        return ""

    return server


def _run_http(era: str) -> None:
    import uvicorn

    app = _server().streamable_http_app()
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    guarded: Any = _without_initialize(app) if era == "modern" else app
    uvicorn.Server(uvicorn.Config(guarded, log_level="error")).run([listening])


def _without_initialize(app: Any) -> Any:
    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        first = await receive()
        message = json.loads(first["body"])
        if message["method"] != "initialize":
            pending = [first]

            async def replay() -> Any:
                return pending.pop() if pending else await receive()

            await app(scope, replay, send)
            return
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": REFUSAL}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return guarded


def _relay() -> None:
    """Pass all messages except `initialize` to a server in another process."""
    child = subprocess.Popen(official_program("legacy"), stdin=subprocess.PIPE)
    assert child.stdin is not None
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message["method"] == "initialize":
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": REFUSAL}), flush=True)
        else:
            child.stdin.write(line)
            child.stdin.flush()
    child.stdin.close()
    child.wait()


if __name__ == "__main__":
    transport, era = sys.argv[1:3]
    if transport == "http":
        _run_http(era)
    elif era == "modern":
        _relay()
    else:
        _server().run()
