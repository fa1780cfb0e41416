"""A client that reads only when the test calls it, so that its server has to wait."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Unpack

import msgspec
from mcp_types.jsonrpc import jsonrpc_message_adapter

from kit.clients.wire_client import BaseClient
from kit.system.memory import memory_bytes
from parley.testing import ScriptedModel, check_message
from parley.testing.home import Home, ServerOptions
from parley.testing.model import TIMEOUT_SECONDS
from parley.wire.framing import LineFramer
from parley.wire.mcp import PLAIN_VERSION

__all__ = ["SlowClient"]

READ_BYTES: Final = 64 * 1024
"""The size of one read, in bytes. The client reads at most twice this size in advance."""


CHECKED_OF_A_KIND: Final = 100
"""The number of messages of each kind that are validated completely.

Of the others, only the JSON-RPC structure is checked, because there may be a million.
"""


class SlowClient(BaseClient):
    """An initialized server with a client that reads slowly. Use `async with SlowClient(model)`."""

    def __init__(
        self, model: ScriptedModel, *, version: str = PLAIN_VERSION, **options: Unpack[ServerOptions]
    ) -> None:
        super().__init__(model)
        self._version = version
        self._home = Home(model, **options)
        self._framer = LineFramer(limit=sys.maxsize)
        self._frames: deque[Any] = deque()
        self._seen: Counter[str | None] = Counter()

    async def __aenter__(self) -> SlowClient:
        self._home.open()
        self._process = await asyncio.create_subprocess_exec(
            *self._home.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._home.stderr,
            env=self._home.environ,
            cwd=self._home.work,
            limit=READ_BYTES,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        await self.initialize(self._version)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stdin.close()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while await self._stdout.read(READ_BYTES):
                    pass
                await self._process.wait()
        except BaseException:
            self._process.kill()
            await self._process.wait()
            raise
        finally:
            self._home.close()

    @property
    def work(self) -> Path:
        return self._home.work

    def write(self, data: bytes) -> None:
        self._stdin.write(data)

    async def read(self) -> Any:
        if not self._frames:
            await self._receive()
        frame = self._frames.popleft()
        message = msgspec.json.decode(frame)
        self._seen[message.get("method")] += 1
        if self._seen[message.get("method")] <= CHECKED_OF_A_KIND:
            check_message(frame, version=self._version)
        else:
            jsonrpc_message_adapter.validate_python(message)
        return message

    async def _receive(self) -> None:
        """Wait for one frame or more."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not self._frames:
                data = await self._stdout.read(READ_BYTES)
                if not data:
                    raise EOFError("the server has ended")
                self._frames += self._framer.feed(data)

    async def take_all(self) -> None:
        """Receive everything up to the end of the server's output. The test reads it later."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while data := await self._stdout.read(READ_BYTES):
                self._frames += self._framer.feed(data)

    def close_stdin(self) -> None:
        self._stdin.close()

    def memory(self) -> int:
        """Return the current memory of the server, in bytes."""
        return memory_bytes(self._process.pid, "VmRSS")

    def most_memory(self) -> int:
        """Return the peak memory of the server, in bytes."""
        return memory_bytes(self._process.pid, "VmHWM")
