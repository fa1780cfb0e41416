"""A client of Streamable HTTP, and raw bytes for requests that no real client sends."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp.connector import AddrInfoType

from kit.clients.reading import WAIT_SECONDS
from kit.clients.requests import request, tool
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import check_message
from parley.wire.mcp import FULL_VERSION

__all__ = ["HttpClient", "HttpReply", "SseEvent", "SseReader", "raw_exchange"]

BOTH = "application/json, text/event-stream"
KEEP_SECONDS = 1.0
"""The time in seconds after which the client closes an idle connection.

It is shorter than the server's time, so the client never sends a request over a connection that the server is
closing.
"""


class HttpReply(NamedTuple):
    """An answer that was read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> bytes:
        """The body, or the last message of a stream."""
        if not self.headers.get("Content-Type", "").startswith("text/event-stream"):
            return self.body
        return [line for line in self.body.split(b"\n") if line.startswith(b"data: ")][-1].removeprefix(b"data: ")

    @property
    def json(self) -> Any:
        return json.loads(self.message)


class SseEvent(NamedTuple):
    id: str | None
    message: Any


class SseReader:
    """Reads server-sent events from one response."""

    def __init__(self, response: aiohttp.ClientResponse, version: str) -> None:
        self.response, self._version = response, version
        self._received = b""
        self.events: list[SseEvent] = []
        """All events so far."""
        self.comments = 0

    async def next(self) -> SseEvent | None:
        """Return the next event; None at the end of the stream."""
        event_id, data = None, []
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while line := await self._line():
                name, _, value = line.decode().rstrip("\n").partition(":")
                value = value.removeprefix(" ")
                if name == "data":
                    data.append(value)
                elif name == "id":
                    event_id = value
                elif not name and line.startswith(b":"):
                    self.comments += 1
                elif not name and data:
                    frame = "\n".join(data)
                    check_message(frame.encode(), version=self._version)
                    self.events.append(SseEvent(event_id, json.loads(frame)))
                    return self.events[-1]
        return None

    async def _line(self) -> bytes:
        """Return the next line with its end, however long it is; empty at the end of the stream."""
        pieces = [self._received]
        while b"\n" not in pieces[-1]:
            piece = await self.response.content.readany()
            if not piece:
                return b""
            pieces.append(piece)
        line, _, self._received = b"".join(pieces).partition(b"\n")
        return line + b"\n"

    async def until(self, wanted: Callable[[Any], bool]) -> Any:
        """Read until `wanted` accepts a message, and return the message."""
        while (event := await self.next()) is not None:
            if wanted(event.message):
                return event.message
        raise EOFError("the stream has ended")

    async def wait_for_message(self, method: str) -> Any:
        """Read until a request or notification with this method arrives, and return it."""
        return await self.until(lambda message: message.get("method") == method)

    async def rest(self) -> list[Any]:
        """Read to the end, and return the messages."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event.message)
        return found

    def close(self) -> None:
        """Close the connection."""
        self.response.close()


class HttpClient:
    """One client with one session."""

    def __init__(
        self,
        url: str,
        *,
        token: str,
        version: str = FULL_VERSION,
        capabilities: object = None,
        name: str = "test",
        receive_bytes: int | None = None,
    ) -> None:
        """Create the client. `receive_bytes` is the size of the receive buffer of its connections."""
        self.url, self.token, self.version = url, token, version
        self._capabilities = {} if capabilities is None else capabilities
        self._name, self._receive_bytes = name, receive_bytes
        self._ids = count(1)
        self.session_id: str | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS, socket_factory=self._socket)
        self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    def _socket(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        channel = socket.socket(family, kind, protocol)
        if self._receive_bytes is not None:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
        return channel

    def headers(self, **changes: str | None) -> dict[str, str]:
        """Return the headers of a request; `Mcp_Session_Id=None` leaves this header out."""
        usual: dict[str, str | None] = {
            "Authorization": f"Bearer {self.token}",
            "Accept": BOTH,
            "Content-Type": "application/json",
            "Mcp-Session-Id": self.session_id,
            "MCP-Protocol-Version": None if self.session_id is None else self.version,
        }
        usual |= {name.replace("_", "-"): value for name, value in changes.items()}
        return {name: value for name, value in usual.items() if value is not None}

    async def send(self, method: str, body: bytes | None = None, **headers: str | None) -> HttpReply:
        """Send any request and read the answer to its end."""
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            self._http.request(method, self.url, data=_file(body), headers=self.headers(**headers)) as response,
        ):
            return HttpReply(response.status, dict(response.headers), await response.read())

    async def post(self, message: object, **headers: str | None) -> HttpReply:
        return await self.send("POST", json.dumps(message).encode(), **headers)

    async def initialize(self) -> HttpReply:
        params = {
            "protocolVersion": self.version,
            "capabilities": self._capabilities,
            "clientInfo": {"name": self._name, "version": "0"},
        }
        reply = await self.post(request(next(self._ids), "initialize", params))
        self.session_id = reply.headers.get("Mcp-Session-Id")
        return reply

    async def call(self, name: str, **arguments: Any) -> Any:
        """Call a tool that answers as JSON, and return its structured content."""
        reply = await self.post(tool(next(self._ids), name, arguments))
        assert reply.status == 200, reply
        check_message(reply.body, version=self.version)
        result = reply.json["result"]
        assert not result.get("isError"), result
        return result["structuredContent"]

    @asynccontextmanager
    async def stream_post(self, message: object, **headers: str | None) -> AsyncIterator[SseReader]:
        """Post a message whose answer is a stream."""
        body = json.dumps(message).encode()
        async with self._http.post(self.url, data=_file(body), headers=self.headers(**headers)) as response:
            assert response.content_type == "text/event-stream", response
            yield SseReader(response, self.version)

    @asynccontextmanager
    async def codex(self, prompt: str, **arguments: Any) -> AsyncIterator[SseReader]:
        """Call `codex`."""
        async with self.stream_post(tool(next(self._ids), "codex", {"prompt": prompt, **arguments})) as reader:
            yield reader

    @asynccontextmanager
    async def stream(self, **headers: str | None) -> AsyncIterator[SseReader]:
        """Open the GET stream."""
        async with self._http.get(self.url, headers=self.headers(**headers)) as response:
            assert response.status == 200, response
            yield SseReader(response, self.version)

    async def create(self, **settings: Any) -> str:
        """Create a conversation and return its id."""
        arguments = {"prompt": "", "model": "scripted-model", "cwd": "/tmp", **settings}
        return str((await self.call("conversationCreate", **arguments))["conversation_id"])

    async def say(self, conversation: str, text: str) -> None:
        """Send a message."""
        content = [{"type": "text", "text": text}]
        await self.call("conversationSendMessage", conversation_id=conversation, content=content)

    async def read_state(self, conversation: str, *, after: int) -> tuple[int, str]:
        """Wait for events after a position. Return the last position and the state."""
        arguments = {"conversation_id": conversation, "after": after, "wait_seconds": WAIT_SECONDS}
        page = await self.call("conversationRead", **arguments)
        return page["seq"], page["state"]


def _file(body: bytes | None) -> io.BytesIO | None:
    """Return a body as a file, because aiohttp warns about a large body that is sent as bytes."""
    return None if body is None else io.BytesIO(body)


async def raw_exchange(url: str, data: bytes, *, ends: bool = False) -> bytes:
    """Send bytes to the server and return everything that it sends until it closes the connection."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(data)
            if ends:
                writer.write_eof()
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
