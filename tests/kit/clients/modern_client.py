"""Clients of MCP 2026-07-28, over a pipe and over HTTP. Each request contains the version and the capabilities."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, Unpack

from kit.clients.http_client import HttpClient, HttpReply, SseReader
from kit.clients.wire_client import WireClient
from parley.testing import RawParley, ScriptedModel, check_message
from parley.testing.home import ServerOptions
from parley.wire.modern import MODERN_VERSION

__all__ = ["ASKABLE", "ModernHttpClient", "ModernWireClient", "modern_meta", "speaking_modern"]

ASKABLE: Final[dict[str, Any]] = {"elicitation": {"form": {}}}
"""The capabilities of a client that can be asked."""

_PREFIX: Final = "io.modelcontextprotocol"


def modern_meta(
    capabilities: Any = None, *, version: object = MODERN_VERSION, name: str = "test"
) -> dict[str, Any]:
    """Return the `_meta` of a request."""
    return {
        f"{_PREFIX}/protocolVersion": version,
        f"{_PREFIX}/clientCapabilities": {} if capabilities is None else capabilities,
        f"{_PREFIX}/clientInfo": {"name": name, "version": "0"},
    }


@asynccontextmanager
async def speaking_modern(
    model: ScriptedModel, *, capabilities: Any = None, name: str = "test", **options: Unpack[ServerOptions]
) -> AsyncIterator[ModernWireClient]:
    """Start a server on a pipe, without an `initialize` request."""
    async with RawParley(model, **options) as raw:
        yield ModernWireClient(raw, modern_meta(capabilities, name=name))


class ModernWireClient(WireClient):
    """A client over a pipe."""

    def __init__(self, raw: RawParley, meta: dict[str, Any]) -> None:
        super().__init__(raw)
        self.meta = meta

    def request(self, method: str, params: Any) -> int:
        more = {} if params is None else params
        return super().request(method, {**more, "_meta": {**self.meta, **more.get("_meta", {})}})

    def legacy(self, method: str, params: Any) -> int:
        """Send a request of an earlier version."""
        return super().request(method, params)

    def retry(self, tool: str, asked: Any, responses: Any, **arguments: Any) -> int:
        """Call a tool again, with answers to the requests in its last result."""
        params = {"name": tool, "arguments": arguments, "inputResponses": responses}
        return self.request("tools/call", {**params, "requestState": asked["requestState"]})


class ModernHttpClient(HttpClient):
    """A client over HTTP, without a session."""

    def __init__(self, url: str, *, token: str, capabilities: object = None, name: str = "test") -> None:
        super().__init__(url, token=token, version=MODERN_VERSION, capabilities=capabilities, name=name)
        self.meta = modern_meta(capabilities, name=name)
        self.numbers = count(1)

    def message(self, method: str, params: Any = None) -> dict[str, Any]:
        """Return a request."""
        given = params or {}
        meta = {**self.meta, **given.get("_meta", {})}
        return {"jsonrpc": "2.0", "id": next(self.numbers), "method": method, "params": {**given, "_meta": meta}}

    def headers_of(self, message: Any) -> dict[str, str | None]:
        """Return the headers that repeat a message."""
        params = message.get("params", {})
        name = params.get("name", params.get("uri"))
        if name is not None and not name.isascii():
            name = f"=?base64?{base64.b64encode(name.encode()).decode()}?="
        return {"MCP_Protocol_Version": MODERN_VERSION, "Mcp_Method": message["method"], "Mcp_Name": name}

    async def ask(self, method: str, params: Any = None, **headers: str | None) -> HttpReply:
        """Send a request, and read its answer to the end."""
        message = self.message(method, params)
        reply = await self.post(message, **{**self.headers_of(message), **headers})
        if reply.status == 200:
            check_message(reply.message, version=MODERN_VERSION)
        return reply

    async def call(self, name: str, **arguments: Any) -> Any:
        reply = await self.ask("tools/call", {"name": name, "arguments": arguments})
        assert reply.status == 200, reply
        result = reply.json["result"]
        assert not result.get("isError"), result
        return result["structuredContent"]

    @asynccontextmanager
    async def stream_of(self, method: str, params: Any) -> AsyncIterator[SseReader]:
        """Send a request whose answer is a stream."""
        message = self.message(method, params)
        async with self.stream_post(message, **self.headers_of(message)) as reader:
            yield reader

    @asynccontextmanager
    async def call_stream(self, name: str, *, more: Any = None, **arguments: Any) -> AsyncIterator[SseReader]:
        """Call a tool whose answer is a stream. `more` are further parameters."""
        async with self.stream_of("tools/call", {"name": name, "arguments": arguments, **(more or {})}) as reader:
            yield reader
