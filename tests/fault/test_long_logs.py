"""The time and the memory for opening a conversation do not depend on its length."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from kit.builders.entries import FIRST
from kit.builders.long_logs import write_long
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.cpu import precise_cpu_seconds
from kit.system.memory import memory_bytes
from parley.wire.mcp import FULL_VERSION

MEMORY_BYTES: Final = 150_000_000
CPU_SECONDS: Final = 0.5
"""The maximum CPU time of a first call, in seconds. It is several times the usual CPU time."""
FIRST_BYTE_SECONDS: Final = 1.0
NEXT_MESSAGE_SECONDS: Final = 0.5
FIRST_BYTE_OF_100_000_SECONDS: Final = 0.1


class Server:
    """A server process, and the bytes that it has written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._unread = process, b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, tool: str, **arguments: Any) -> None:
        params = {"name": tool, "arguments": {"conversation_id": FIRST, **arguments}}
        self.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def more(self) -> bytes:
        """Return unread bytes, at least one."""
        assert self._process.stdout is not None
        unread, self._unread = self._unread, b""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return unread or await self._process.stdout.read(1024 * 1024)

    async def line(self) -> bytes:
        parts: list[bytes] = []
        while not parts or b"\n" not in parts[-1]:
            parts.append(await self.more())
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line

    async def result(self) -> Any:
        answer = msgspec.json.decode(await self.line())
        return answer["result"]["structuredContent"]


@asynccontextmanager
async def started(home: Path) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "mcp", "-c", "model_provider=scripted"),
        env={"PATH": os.environ["PATH"], "PARLEY_HOME": str(home)},
        stdin=PIPE,
        stdout=PIPE,
        limit=4 * 1024 * 1024,
    )
    server = Server(process)
    info = {"name": "test", "version": "1"}
    params = {"protocolVersion": FULL_VERSION, "capabilities": {}, "clientInfo": info}
    server.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    await server.line()
    try:
        yield server
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class Costs(msgspec.Struct):
    """The measured costs of the first calls of new processes."""

    stream_seconds: float = 0.0
    stream_cpu_seconds: float = 0.0
    read_seconds: float = 0.0
    message_seconds: float = 0.0
    memory_bytes: int = 0


async def costs_of(home: Path, events: int) -> Costs:
    """Read and continue a conversation in new processes, and check what they send."""
    costs = Costs()
    async with started(home) as server:
        cpu, began = precise_cpu_seconds(server.pid), time.monotonic()
        server.call("conversationStream")
        answer = msgspec.json.decode(await server.line())
        first = await server.more()
        costs.stream_seconds, costs.stream_cpu_seconds = (
            time.monotonic() - began,
            precise_cpu_seconds(server.pid) - cpu,
        )
        assert answer["id"] == 1
        parts = [first]
        while not parts[-1].endswith(b"\n"):
            parts.append(await server.more())
        costs.memory_bytes = memory_bytes(server.pid, "VmHWM")
        snapshot = b"".join(parts)
        del parts
        shown = msgspec.json.decode(snapshot)["params"]
        assert [one["_meta"]["seq"] for one in shown["initial_state"]["events"]] == sorted(
            {one["_meta"]["seq"] for one in shown["initial_state"]["events"]}
        )
        assert len(shown["initial_state"]["events"]) >= events
        last = shown["_meta"]["seq"]
    async with started(home) as server:
        began = time.monotonic()
        server.call("conversationRead", limit=100)
        page = await server.result()
        costs.read_seconds = time.monotonic() - began
        assert [one["seq"] for one in page["events"]] == [
            one["_meta"]["seq"] for one in shown["initial_state"]["events"][:100]
        ]
        server.call("conversationRead", after=last - 10)
        assert (await server.result())["seq"] == last
    async with started(home) as server:
        began = time.monotonic()
        server.call("conversationRead", before=last + 1, limit=100)
        page = await server.result()
        costs.read_seconds = max(costs.read_seconds, time.monotonic() - began)
        assert [one["seq"] for one in page["events"]] == [
            one["_meta"]["seq"] for one in shown["initial_state"]["events"][-100:]
        ]
        assert page["before"] == page["events"][0]["seq"]
    async with started(home) as server:
        began = time.monotonic()
        server.call("conversationStream", last=100)
        assert await server.result() == {}
        end = msgspec.json.decode(await server.line())["params"]
        costs.read_seconds = max(costs.read_seconds, time.monotonic() - began)
        assert end["initial_state"]["events"] == shown["initial_state"]["events"][-100:]
        assert end["_meta"]["before"] == page["before"]
    async with started(home) as server:
        began = time.monotonic()
        server.call("conversationSendMessage", content=[{"type": "text", "text": "Hello"}])
        assert (await server.result())["status"] == "ok"
        costs.message_seconds = time.monotonic() - began
        costs.memory_bytes = max(costs.memory_bytes, memory_bytes(server.pid, "VmHWM"))
    return costs


@pytest.mark.promises("stream.long", "read.before", "stream.last")
async def test_a_conversation_of_50_000_events_is_opened_without_reading_all_of_it(tmp_path: Path) -> None:
    await write_long(tmp_path, 50_000, cwd=str(tmp_path))

    costs = await costs_of(tmp_path, 50_000)
    assert costs.stream_cpu_seconds < CPU_SECONDS
    assert costs.memory_bytes < MEMORY_BYTES


@pytest.mark.long
@pytest.mark.promises("stream.long")
async def test_a_conversation_of_1_000_000_events_is_opened_at_once_and_takes_little_memory(tmp_path: Path) -> None:
    await write_long(tmp_path, 1_000_000, cwd=str(tmp_path))

    costs = await costs_of(tmp_path, 1_000_000)
    assert costs.stream_seconds < FIRST_BYTE_SECONDS
    assert costs.read_seconds < FIRST_BYTE_SECONDS
    assert costs.message_seconds < NEXT_MESSAGE_SECONDS
    assert costs.memory_bytes < MEMORY_BYTES


@pytest.mark.long
@pytest.mark.promises("stream.long")
async def test_the_first_byte_of_100_000_events_comes_within_100_ms(tmp_path: Path) -> None:
    await write_long(tmp_path, 100_000, cwd=str(tmp_path))

    costs = [await costs_of(tmp_path, 100_000) for _ in range(5)]
    assert min(one.stream_seconds for one in costs) < FIRST_BYTE_OF_100_000_SECONDS
    assert min(one.read_seconds for one in costs) < FIRST_BYTE_OF_100_000_SECONDS
