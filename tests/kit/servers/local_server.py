"""One server with several clients in this process. Everything is real except the agent, which only asks for
approvals.

A message is the number of approvals that the agent asks for, one after another. The results are in
`LocalServer.decisions`. The messages to a client are a list of frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import msgspec

from kit.builders.approvals import CWD, command_approval
from kit.builders.records import call, message
from kit.builders.tools import NoCommands
from kit.clients.requests import request
from kit.system.commands import TIMEOUT_SECONDS
from parley.config.load import Loader
from parley.config.types import Settings, SettingsOverrides
from parley.conversation.approvals import ApprovalEvent
from parley.conversation.history import UserItem
from parley.conversation.records import ApprovalRequest, CallItem
from parley.ports.model import CallDone, Chunk, MessageDone, ModelRequest, ResponseDone, ToolSpec
from parley.ports.store import Store
from parley.ports.tools import ToolContext, TurnTools
from parley.runtime.conversation import Conversation
from parley.runtime.registry import ConversationRegistry
from parley.server.context import LOCAL_USER, Principal, ServerContext
from parley.server.serve import ClientConnection
from parley.stores.memory import MemoryStore
from parley.testing import check_message
from parley.wire.elicitation import ElicitationParams
from parley.wire.framing import Overlong
from parley.wire.ids import ConversationId
from parley.wire.items import InputItem, text_of
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.mcp import FULL_VERSION

__all__ = ["FrameList", "LocalClient", "LocalServer", "StandingClock"]

# --- the agent -------------------------------------------------------------------------------


class _Obedient:
    """A model that makes as many calls as the last message specifies."""

    max_retries = 0

    def why_unsupported(self, item: InputItem) -> str | None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        last = request.history[-1]
        if isinstance(last, UserItem) and (wanted := int(text_of(last.content))):
            yield [*(CallDone(call(f"call{n}")) for n in range(1, wanted + 1)), ResponseDone(None)]
        else:
            yield [MessageDone(message("Done")), ResponseDone(None)]


class _Asks:
    """Tools that ask for an approval and do nothing else."""

    def __init__(self, server: LocalServer, context: ToolContext) -> None:
        self._server, self._context = server, context

    def specs(self) -> tuple[ToolSpec, ...]:
        return ()

    async def run(self, call: CallItem) -> str:
        number = next(self._server.numbers)
        asking = next(one for one in self._server.conversations if one._log is self._context.transcript)
        shown, asked = self._server.approval_request(number)
        answered = await asking._approvals.ask(shown, asked, self._context.settings.approvals)
        text = answered.decision if answered.reason is None else f"{answered.decision}: {answered.reason}"
        self._server.decisions.append((number, text))
        return text


class _Tools:
    def __init__(self, server: LocalServer) -> None:
        self._server = server

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[TurnTools]:
        yield _Asks(self._server, context)

    async def start_servers(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        return ()

    async def close(self) -> None:
        return


class StandingClock:
    """A clock that advances only when the test calls `passes`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleeping: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    @property
    def is_waited_for(self) -> bool:
        """True if a task is sleeping."""
        return any(not awake.is_set() for _, awake in self._sleeping)

    async def sleep(self, seconds: float) -> None:
        awake = asyncio.Event()
        self._sleeping.append((self._now + seconds, awake))
        await awake.wait()

    def passes(self, seconds: float) -> None:
        self._now += seconds
        for until, awake in self._sleeping:
            if until <= self._now:
                awake.set()


# --- the server --------------------------------------------------------------------------------


class LocalServer:
    """The server: `async with LocalServer(home)`. The home has no config.toml."""

    def __init__(
        self,
        home: str,
        approval_request: Callable[[int], tuple[ApprovalEvent, ApprovalRequest]] | None = None,
        *,
        store: Store | None = None,
    ) -> None:
        """Create the server. Servers with the same store act like successive processes of one home."""
        self.approval_request: Callable[[int], tuple[ApprovalEvent, ApprovalRequest]]
        self.approval_request = approval_request or (lambda number: command_approval(number, "make", f"t{number}"))
        self.numbers = count(1)
        self.decisions: list[tuple[int, str]] = []
        """The result of each approval that the model got."""
        self.clock = StandingClock()
        self._loader = Loader(environ={"PARLEY_HOME": home}, server_dir=home)
        self.conversations = ConversationRegistry(
            store=store or MemoryStore(),
            choose=self._loader.choose,
            clock=self.clock,
            open_model=lambda settings, conversation: _Obedient(),
            tools=_Tools(self),
            commands=NoCommands(),
        )
        self.context = ServerContext(conversations=self.conversations, loader=self._loader)

    async def __aenter__(self) -> LocalServer:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.conversations.stop()
            await self.conversations.close()
            await self._tasks.__aexit__(*error)

    async def create(self, config: Mapping[str, Any] | None = None) -> Conversation:
        """Create a conversation without a client."""
        return await self.conversations.create(SettingsOverrides(cwd=CWD, config=dict(config or {})))

    async def client(
        self, *, version: str = FULL_VERSION, capabilities: object = None, principal: Principal = LOCAL_USER
    ) -> LocalClient:
        """Create an initialized client that can be asked, unless its capabilities say otherwise."""
        client = self.new_client(version, principal)
        client.introduce(capabilities)
        await client.answer_to("hello")
        return client

    async def asking(self, *clients: LocalClient, approvals: int = 1) -> Conversation:
        """Create a conversation that these clients stream and that asks for approvals.

        Wait until all clients were asked for the first approval.
        """
        conversation = await self.create()
        for client in clients:
            await client.stream(conversation.id)
        await clients[0].say(conversation.id, approvals)
        for client in clients:
            await client.approval_request()
        return conversation

    def new_client(self, version: str = FULL_VERSION, principal: Principal = LOCAL_USER) -> LocalClient:
        """Create a client that is not initialized."""
        return LocalClient(self, self._tasks, version, principal)

    async def settle_down(self) -> None:
        """Run the event loop until all pending callbacks are done."""
        for _ in range(ROUNDS):
            await asyncio.sleep(0)

    async def after(self, seconds: float) -> None:
        """Advance the clock, and run the event loop until all pending callbacks are done."""
        self.clock.passes(seconds)
        await self.settle_down()

    def entry_types(self, conversation: ConversationId) -> list[str]:
        """Return the types of all entries of a log, in order."""
        return [entry.type for one in self.conversations if one.id == conversation for entry in one.log.entries]


ROUNDS: Final = 60
"""A number of event loop iterations that is larger than the longest chain of callbacks.

A complete turn takes about thirty.
"""


class FrameList:
    """The outbox of a client in this process: a list of frames."""

    def __init__(self, version: str) -> None:
        self.messages: list[Any] = []
        self.writable = True
        self.is_gone = False
        self.changed = asyncio.Event()
        self._version = version
        self._waiting: list[Callable[[], None]] = []

    def send(self, frame: bytes) -> None:
        if self.is_gone:
            return
        assert b"\n" not in frame
        check_message(frame, version=self._version)
        self.messages.append(msgspec.json.decode(frame))
        self.changed.set()

    def begin_frame(self) -> FrameInParts:
        self.writable = False
        return FrameInParts(self)

    async def flush(self) -> None:
        return

    def close(self) -> None:
        self.is_gone = True
        self._waiting.clear()

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._waiting.append(wake)

    def read_on(self) -> None:
        """Make the outbox writable again."""
        self.writable = True
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


class FrameInParts:
    """A frame that is sent in parts. Other frames do not wait for its end."""

    def __init__(self, frames: FrameList) -> None:
        self._frames, self._parts = frames, list[bytes]()

    @property
    def closed(self) -> bool:
        return self._frames.is_gone

    def write(self, part: bytes) -> None:
        self._parts.append(part)

    async def room(self) -> None:
        await asyncio.sleep(0)

    def end(self) -> None:
        self._frames.send(b"".join(self._parts))
        self._frames.read_on()


class LocalClient:
    """A client in this process."""

    def __init__(
        self, server: LocalServer, tasks: asyncio.TaskGroup, version: str, principal: Principal = LOCAL_USER
    ) -> None:
        self.outbox = FrameList(version)
        self.connection = ClientConnection(self.outbox, server.context, tasks, principal)
        self._ids = count(1)
        self._version = version

    @property
    def messages(self) -> list[Any]:
        """All messages that the client was sent."""
        return self.outbox.messages

    # --- sending ------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes | Overlong) -> None:
        """Send one frame. Frames without an await between them arrive in one read."""
        self.connection.take(frame)

    def introduce(self, capabilities: object = None) -> None:
        """Send `initialize` with the request id `hello`."""
        able = {"elicitation": {}} if capabilities is None else capabilities
        info = {"name": "guest", "version": "1"}
        params = {"protocolVersion": self._version, "capabilities": able, "clientInfo": info}
        self.send(request("hello", "initialize", params))

    def request(self, method: str, params: Any) -> int:
        """Send a request; return its id."""
        request_id = next(self._ids)
        self.send(request(request_id, method, params))
        return request_id

    def call(self, tool: str, **arguments: Any) -> int:
        """Call a tool; return the id of the request."""
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    async def value_of(self, request_id: int) -> Any:
        """Return the value of a typed result."""
        return (await self.answer_to(request_id))["result"]["structuredContent"]

    def cancel(self, request_id: RequestId) -> None:
        params = {"requestId": request_id}
        self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def answer(self, request_id: RequestId, result: object) -> None:
        self.send({"jsonrpc": "2.0", "id": request_id, "result": result})

    async def say(self, conversation: ConversationId, approvals: int) -> int:
        """Send a message that makes the agent ask for this many approvals; return the id of the request."""
        content = [{"type": "text", "text": str(approvals)}]
        request_id = self.call("conversationSendMessage", conversation_id=conversation, content=content)
        await self.answer_to(request_id)
        return request_id

    async def stream(self, conversation: ConversationId) -> int:
        """Open a stream and wait for its snapshot; return the id of the request."""
        snapshots = self.number_of("notifications/initial_state")
        request_id = self.call("conversationStream", conversation_id=conversation)
        await self.until(lambda: self.number_of("notifications/initial_state") > snapshots)
        return request_id

    def leave(self) -> None:
        """Disconnect."""
        self.connection.remove()

    # --- received messages --------------------------------------------------------------

    def number_of(self, method: str) -> int:
        return sum(message.get("method") == method for message in self.messages)

    @property
    def asked(self) -> list[Any]:
        """The approval requests that the client was sent, in order."""
        return [one for one in self.messages if one.get("method") == ElicitationParams.METHOD]

    @property
    def taken_back(self) -> list[Any]:
        """The params of the cancellations that the client was sent."""
        return [one["params"] for one in self.messages if one.get("method") == "notifications/cancelled"]

    def event(self, kind: str) -> Any:
        """Return the first event of this type that the client was sent."""
        return next(one["params"]["msg"] for one in self.messages if one.get("method") == kind)

    def heard(self, *methods: str) -> list[str]:
        """Return the messages with these methods that the client was sent, in order."""
        return [one["method"] for one in self.messages if one.get("method") in methods]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not holds():
                self.outbox.changed.clear()
                await self.outbox.changed.wait()

    async def approval_request(self, number: int = 1) -> Any:
        """Wait for the approval request with this number and return it."""
        await self.until(lambda: len(self.asked) >= number)
        return self.asked[number - 1]

    async def answer_to(self, request_id: RequestId) -> Any:
        """Wait for the answer to a request of the client."""

        def found() -> list[Any]:
            return [one for one in self.messages if "method" not in one and one["id"] == request_id]

        await self.until(lambda: bool(found()))
        return found()[0]

    async def wait_for_message(self, method: str, times: int = 1) -> None:
        await self.until(lambda: self.number_of(method) >= times)
