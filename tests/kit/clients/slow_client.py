"""A client that reads when it is told to and not before, so that its server has to wait."""

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
from parley.testing.model import PATIENCE_SECONDS
from parley.wire.framing import LineFramer
from parley.wire.mcp import PLAIN_VERSION

__all__ = ["SlowClient"]

READ_BYTES: Final = 64 * 1024
"""What is read at once; no more than twice that is taken from the pipe before it is asked for."""


CHECKED_OF_A_KIND: Final = 100
"""There may be a million deltas: of each kind the first are checked whole, the others for what MCP says of them."""


class SlowClient(BaseClient):
    """`async with SlowClient(model) as client`: a server that has been initialized."""

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
            async with asyncio.timeout(PATIENCE_SECONDS):
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
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._frames:
                data = await self._stdout.read(READ_BYTES)
                if not data:
                    raise EOFError("the server has ended")
                self._frames += self._framer.feed(data)
        frame = self._frames.popleft()
        message = msgspec.json.decode(frame)
        self._seen[message.get("method")] += 1
        if self._seen[message.get("method")] <= CHECKED_OF_A_KIND:
            check_message(frame, version=self._version)
        else:
            jsonrpc_message_adapter.validate_python(message)
        return message

    async def take_all(self) -> None:
        """Take what the server has to say up to its end, to be read later: by then it waits for nobody for long."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while data := await self._stdout.read(READ_BYTES):
                self._frames += self._framer.feed(data)

    def close_stdin(self) -> None:
        self._stdin.close()

    def memory(self) -> int:
        """How much memory the server has now, in bytes."""
        return memory_bytes(self._process.pid, "VmRSS")

    def most_memory(self) -> int:
        """How much it had when it had most."""
        return memory_bytes(self._process.pid, "VmHWM")
