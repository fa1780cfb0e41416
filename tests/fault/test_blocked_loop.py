"""No operation of a client on a conversation of any length blocks the event loop for more than 50 ms."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from kit.builders.entries import FIRST, summary
from kit.builders.events import user_message
from kit.builders.long_logs import create_long
from kit.builders.records import message, model_asked, model_said, settings_chosen, turn_ended, turn_started
from kit.servers.local_server import LocalServer
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.loop_watchdog import Watchdog, watching_the_loop
from parley.conversation.log import Log, LogPayload
from parley.ports.store import Store
from parley.runtime.bulk_create import bulk_create, pages_of
from parley.server.serve import ServerCore
from parley.stores.memory import MemoryStore
from parley.stores.sqlite.store import SqliteStore
from parley.transports.descriptors import DescriptorTransport
from parley.wire.ids import ConversationId
from parley.wire.mcp import FULL_VERSION

BLOCKED_SECONDS: Final = 0.05
EVENTS: Final = 20_000
HISTORY: Final = 100_000
"""The number of items in a long history, without a summary."""


class Client:
    """A client in its own thread, over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._unread = connection, b""

    async def call(self, tool: str, *, lines: int = 1, **arguments: Any) -> list[Any]:
        """Call a tool, and return the decoded lines that follow."""
        return await asyncio.to_thread(self._call, "tools/call", {"name": tool, "arguments": arguments}, lines)

    async def read_resource(self, uri: str) -> str:
        """Return the text of a resource."""
        [answer] = await asyncio.to_thread(self._call, "resources/read", {"uri": uri}, 1)
        return str(answer["result"]["contents"][0]["text"])

    def introduce(self) -> None:
        info = {"name": "test", "version": "1"}
        self._send("initialize", {"protocolVersion": FULL_VERSION, "capabilities": {}, "clientInfo": info})
        self._line()

    def _call(self, method: str, params: object, lines: int) -> list[Any]:
        self._send(method, params)
        return [msgspec.json.decode(self._line()) for _ in range(lines)]

    def _send(self, method: str, params: object) -> None:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._connection.sendall(msgspec.json.encode(request) + b"\n")

    def _line(self) -> bytes:
        parts = [self._unread]
        while b"\n" not in parts[-1]:
            parts.append(self._connection.recv(1024 * 1024))
            assert parts[-1]
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line


@asynccontextmanager
async def connected(home: Path, store: Store) -> AsyncIterator[Client]:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_SECONDS)
    with ours, theirs:
        async with LocalServer(str(home), store=store) as server:
            transport = DescriptorTransport(stdin=theirs.fileno(), stdout=theirs.fileno())
            serving = asyncio.create_task(ServerCore(server.context).serve_client(transport))
            client = Client(ours)
            await asyncio.to_thread(client.introduce)
            yield client
            transport.stop_reading()
            await serving
            transport.close()


async def create_history(store: Store) -> None:
    """Create a conversation whose history is long, so that its checkpoint is large."""
    payloads: list[LogPayload] = [settings_chosen(cwd="/")]
    said = [model_said(message("Answer")) for _ in range(8)]
    for number in range(HISTORY // 9):
        begun = turn_started(str(number)), user_message("Hello", message_id=f"m{number}"), model_asked()
        payloads += [*begun, *said, turn_ended()]
    log = Log()
    log.append(payloads, at=1.0)
    await bulk_create(store, FIRST, pages_of(log.entries))


def check(watchdog: Watchdog) -> None:
    assert watchdog.cpu_seconds < BLOCKED_SECONDS, watchdog.callback
    watchdog.reset()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path))


@pytest.mark.promises("framing.never-blocked")
async def test_reading_a_long_conversation_blocks_nothing(tmp_path: Path, store: Store) -> None:
    await create_long(store, EVENTS, cwd=str(tmp_path))
    async with connected(tmp_path, store) as client:
        with watching_the_loop() as watchdog:
            _, snapshot = await client.call("conversationStream", conversation_id=FIRST, lines=2)
            check(watchdog)
            assert len(snapshot["params"]["initial_state"]["events"]) >= EVENTS
            await client.call("conversationRead", conversation_id=FIRST, limit=1000)
            check(watchdog)
            await client.call("conversationRead", conversation_id=FIRST, before=EVENTS // 2, limit=10_000)
            check(watchdog)
            [listed] = await client.call("conversationsList", text="a text that no message has")
            check(watchdog)
            assert listed["result"]["structuredContent"]["conversations"] == []
            [found] = await client.call("conversationSearch", text="a text that no message has")
            check(watchdog)
            assert found["result"]["structuredContent"] == {"messages": []}
            [forked] = await client.call("conversationFork", conversation_id=FIRST)
            check(watchdog)
            assert forked["result"]["structuredContent"]["conversation_id"] != FIRST


CONVERSATIONS: Final = 10_000
"""The number of conversations in the longest page of a list."""


@pytest.mark.promises("framing.never-blocked")
async def test_listing_many_conversations_blocks_nothing(tmp_path: Path, store: Store) -> None:
    for begin in range(0, CONVERSATIONS, 1000):
        names = (ConversationId(f"00000000-0000-4000-8000-{begin + number:012}") for number in range(1000))
        await asyncio.gather(*(store.create(name, [], summary()) for name in names))
    async with connected(tmp_path, store) as client:
        with watching_the_loop() as watchdog:
            [listed] = await client.call("conversationsList", limit=CONVERSATIONS)
            check(watchdog)
            assert len(listed["result"]["structuredContent"]["conversations"]) == CONVERSATIONS
            await client.call("attentionList", limit=200)
            check(watchdog)
            await client.read_resource("parley://conversations")
            check(watchdog)
            await client.read_resource("parley://attention")
            check(watchdog)


@pytest.mark.promises("framing.never-blocked", "resources.bounds")
async def test_reading_the_resources_of_a_long_conversation_blocks_nothing(tmp_path: Path, store: Store) -> None:
    await create_long(store, 50_000, cwd=str(tmp_path))
    async with connected(tmp_path, store) as client:
        with watching_the_loop() as watchdog:
            transcript = await client.read_resource(f"parley://conversations/{FIRST}")
            check(watchdog)
            events = await client.read_resource(f"parley://conversations/{FIRST}/json")
            check(watchdog)
            assert await client.read_resource(f"parley://conversations/{FIRST}/diff") == ""
            check(watchdog)
            assert 190_000 < len(transcript) < 210_000
            assert "The beginning is left out" in transcript
            document = msgspec.json.decode(events)
            assert not document["is_complete"]
            assert len(events) > 1024 * 1024 * 0.9
            positions = [one["seq"] for one in document["events"]]
            assert positions == sorted(positions)


@pytest.mark.promises("framing.never-blocked")
async def test_loading_and_continuing_a_conversation_with_a_long_history_blocks_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    await create_history(store)
    async with connected(tmp_path, store) as client:
        with watching_the_loop() as watchdog:
            await client.call("conversationStatus", conversation_id=FIRST)
            check(watchdog)
            for number in range(1200):  # a checkpoint is made
                await client.call("conversationRename", conversation_id=FIRST, title=f"Title {number}")
            check(watchdog)
    store._conversations[FIRST].checkpoint = None
    async with connected(tmp_path, store) as client:
        with watching_the_loop() as watchdog:
            await client.call("conversationStatus", conversation_id=FIRST)
            check(watchdog)
