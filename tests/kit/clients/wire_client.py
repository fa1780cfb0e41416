"""A client made of messages alone: it numbers its requests and reads what comes, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Unpack

from kit.clients.messages import answered
from parley.testing import RawParley, ScriptedModel
from parley.testing.home import MODEL, ServerOptions
from parley.wire.jsonrpc import encode
from parley.wire.mcp import PLAIN_VERSION

__all__ = ["BaseClient", "WireClient", "speaking"]


@asynccontextmanager
async def speaking(
    model: ScriptedModel, *, version: str = PLAIN_VERSION, **options: Unpack[ServerOptions]
) -> AsyncIterator[WireClient]:
    """A real server that has been initialized."""
    async with RawParley(model, **options) as raw:
        speaker = WireClient(raw)
        await speaker.initialize(version)
        yield speaker


class BaseClient(ABC):
    """What every such client can do. What it is sent is read once, message by message."""

    initialize_result: Any

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self._ids = count(1)
        self._batch: list[bytes] | None = None

    @property
    @abstractmethod
    def work(self) -> Path:
        """The working directory of its conversations."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write bytes to the server."""

    @abstractmethod
    async def read(self) -> Any:
        """The next message."""

    async def initialize(self, version: str) -> None:
        info = {"name": "talker", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        self.initialize_result = await self.result_of(self.request("initialize", params))

    # --- saying ----------------------------------------------------------------------

    def request(self, method: str, params: Any) -> int:
        """Send a request; its id."""
        request_id = next(self._ids)
        self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return request_id

    def call(self, tool: str, **arguments: Any) -> int:
        """Call a tool; the id of the request."""
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def message(self, conversation: str, text: str, **more: Any) -> int:
        """Say something in a conversation; the id of the request."""
        content = [{"type": "text", "text": text}]
        return self.call("conversationSendMessage", conversation_id=conversation, content=content, **more)

    def stream(self, conversation: str, **more: Any) -> int:
        """Ask for a stream; the id of the request."""
        return self.call("conversationStream", conversation_id=conversation, **more)

    def cancel(self, request_id: int) -> None:
        params = {"requestId": request_id}
        self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is sent in this block arrives in one write."""
        self._batch = []
        yield
        batch, self._batch = self._batch, None
        self.write(b"".join(batch))

    def _send(self, message: Any) -> None:
        line = encode(message) + b"\n"
        if self._batch is None:
            self.write(line)
        else:
            self._batch.append(line)

    # --- listening -------------------------------------------------------------------

    async def take(self, number: int) -> list[Any]:
        """So many messages."""
        return [await self.read() for _ in range(number)]

    async def until(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """All messages up to and including the first that fits."""
        messages = [await self.read()]
        while not wanted(messages[-1]):
            messages.append(await self.read())
        return messages

    async def until_method(self, method: str) -> list[Any]:
        """All messages up to and including the first notification with this method."""
        return await self.until(lambda message: bool(message.get("method") == method))

    async def until_answer(self, request_id: int) -> list[Any]:
        """All messages up to and including the answer to a request."""
        return await self.until(lambda message: message.get("id") == request_id)

    async def result_of(self, request_id: int) -> Any:
        """The result of a request, whose answer must be what comes next."""
        message = await self.read()
        assert message.get("id") == request_id, f"{message} is not the answer to {request_id}"
        return message["result"]

    async def value_of(self, request_id: int) -> Any:
        """The value of a typed result, whose answer must be what comes next."""
        return (await self.result_of(request_id))["structuredContent"]

    async def meanwhile(self) -> list[Any]:
        """All that the server had to say until now: what comes before the answer to a ping."""
        request_id = self.request("ping", {})
        *before, pong = await self.until_answer(request_id)
        assert pong == {"jsonrpc": "2.0", "id": request_id, "result": {}}
        return before

    # --- whole steps -----------------------------------------------------------------

    async def create(self, **more: Any) -> str:
        """A new conversation in the work directory; its id."""
        wanted = {"prompt": "", "model": MODEL, "cwd": str(self.work), **more}
        value = await self.value_of(self.call("conversationCreate", **wanted))
        return str(value["conversation_id"])

    async def open_stream(self, conversation: str, **more: Any) -> tuple[int, Any]:
        """Open a stream where none is open: the id of its request, and the snapshot."""
        request_id = self.stream(conversation, **more)
        assert await self.read() == answered(request_id, {})
        return request_id, await self.read()

    async def say(self, conversation: str, text: str, **more: Any) -> int:
        """Say something and take the answer, which comes before anything else; the id of the request."""
        request_id = self.message(conversation, text, **more)
        assert (await self.value_of(request_id))["status"] == "ok"
        return request_id

    async def over(self, conversation: str) -> None:
        """Until no turn runs in a conversation that is not streamed."""
        seq = 0
        while True:
            page = await self.value_of(
                self.call("conversationRead", conversation_id=conversation, after=seq, wait_seconds=10)
            )
            if page["state"] == "idle":
                return
            seq = page["seq"]


class WireClient(BaseClient):
    """Made by `speaking`."""

    def __init__(self, raw: RawParley) -> None:
        super().__init__(raw.model)
        self.raw = raw

    @property
    def work(self) -> Path:
        return self.raw.work

    def write(self, data: bytes) -> None:
        self.raw.write(data)

    async def read(self) -> Any:
        return await self.raw.read_message()
