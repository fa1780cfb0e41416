"""A client of raw messages: it numbers its requests and reads messages in order."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Unpack

from kit.clients.messages import answered
from kit.clients.reading import WAIT_SECONDS, until_state
from parley.testing import RawParley, ScriptedModel
from parley.testing.home import MODEL, ServerOptions
from parley.wire.jsonrpc import encode
from parley.wire.mcp import PLAIN_VERSION

__all__ = ["BaseClient", "WireClient", "speaking"]


@asynccontextmanager
async def speaking(
    model: ScriptedModel, *, version: str = PLAIN_VERSION, **options: Unpack[ServerOptions]
) -> AsyncIterator[WireClient]:
    """Start a server and initialize it."""
    async with RawParley(model, **options) as raw:
        speaker = WireClient(raw)
        await speaker.initialize(version)
        yield speaker


class BaseClient(ABC):
    """The operations of a raw client. Each message is read once."""

    initialize_result: Any

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self._ids = count(1)
        self._batch: list[bytes] | None = None

    @property
    @abstractmethod
    def work(self) -> Path:
        """The working directory of the client's conversations."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write bytes to the server."""

    @abstractmethod
    async def read(self) -> Any:
        """Return the next message."""

    async def initialize(self, version: str) -> None:
        info = {"name": "talker", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        self.initialize_result = await self.result_of(self.request("initialize", params))

    # --- sending ----------------------------------------------------------------------

    def request(self, method: str, params: Any) -> int:
        """Send a request; return its id."""
        request_id = next(self._ids)
        self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return request_id

    def call(self, tool: str, **arguments: Any) -> int:
        """Call a tool; return the id of the request."""
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def message(self, conversation: str, text: str, **more: Any) -> int:
        """Send a message to a conversation; return the id of the request."""
        content = [{"type": "text", "text": text}]
        return self.call("conversationSendMessage", conversation_id=conversation, content=content, **more)

    def stream(self, conversation: str, **more: Any) -> int:
        """Request a stream; return the id of the request."""
        return self.call("conversationStream", conversation_id=conversation, **more)

    def cancel(self, request_id: int) -> None:
        params = {"requestId": request_id}
        self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Send all messages of this block in one write."""
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

    # --- reading -------------------------------------------------------------------

    async def take(self, number: int) -> list[Any]:
        """Return this many messages."""
        return [await self.read() for _ in range(number)]

    async def until(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """Return all messages up to and including the first that matches."""
        messages = [await self.read()]
        while not wanted(messages[-1]):
            messages.append(await self.read())
        return messages

    async def until_method(self, method: str) -> list[Any]:
        """Return all messages up to and including the first notification with this method."""
        return await self.until(lambda message: bool(message.get("method") == method))

    async def until_answer(self, request_id: int) -> list[Any]:
        """Return all messages up to and including the answer to a request."""
        return await self.until(lambda message: message.get("id") == request_id)

    async def result_of(self, request_id: int) -> Any:
        """Return the result of a request, which must be the next message."""
        message = await self.read()
        assert message.get("id") == request_id, f"{message} is not the answer to {request_id}"
        return message["result"]

    async def value_of(self, request_id: int) -> Any:
        """Return the value of a typed result, which must be the next message."""
        return (await self.result_of(request_id))["structuredContent"]

    async def meanwhile(self) -> list[Any]:
        """Send a ping, and return all messages before its answer: everything that the server has sent so far."""
        request_id = self.request("ping", {})
        *before, pong = await self.until_answer(request_id)
        assert pong == {"jsonrpc": "2.0", "id": request_id, "result": {}}
        return before

    # --- whole steps -----------------------------------------------------------------

    async def create(self, **more: Any) -> str:
        """Create a conversation in the work directory; return its id."""
        wanted = {"prompt": "", "model": MODEL, "cwd": str(self.work), **more}
        value = await self.value_of(self.call("conversationCreate", **wanted))
        return str(value["conversation_id"])

    async def create_with_turns(self, *texts: str, **more: Any) -> str:
        """Create a conversation and run one turn for each of these messages to its end; return its id."""
        conversation = await self.create(**more)
        for text in texts:
            await self.say(conversation, text)
            await self.over(conversation)
        return conversation

    async def read_resource(self, uri: str) -> Any:
        """Return the text of a resource, decoded if it is JSON, and check the rest of its contents."""
        result = (await self.until_answer(self.request("resources/read", {"uri": uri})))[-1]["result"]
        assert list(result) == ["contents"]
        (content,) = result["contents"]
        assert content == {"uri": uri, "mimeType": content["mimeType"], "text": content["text"]}
        is_json = content["mimeType"] == "application/json"
        return json.loads(content["text"]) if is_json else content["text"]

    async def open_stream(self, conversation: str, **more: Any) -> tuple[int, Any]:
        """Open the only stream of a conversation; return the id of its request, and the snapshot."""
        request_id = self.stream(conversation, **more)
        assert await self.read() == answered(request_id, {})
        return request_id, await self.read()

    async def say(self, conversation: str, text: str, **more: Any) -> int:
        """Send a message and read its answer, which must be the next message; return the id of the request."""
        request_id = self.message(conversation, text, **more)
        assert (await self.value_of(request_id))["status"] == "ok"
        return request_id

    async def over(self, conversation: str) -> None:
        """Wait until no turn is running, in a conversation that is not streamed."""
        await until_state(self, conversation, "idle")

    async def read_state(self, conversation: str, *, after: int) -> tuple[int, str]:
        """Wait for events after a position, in a conversation that is not streamed. Return the last position and
        the state.
        """
        arguments = {"conversation_id": conversation, "after": after, "wait_seconds": WAIT_SECONDS}
        page = await self.value_of(self.call("conversationRead", **arguments))
        return page["seq"], page["state"]


class WireClient(BaseClient):
    """A client of raw messages. Created by `speaking`."""

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
