"""A server in a separate process, with a client or with raw messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

import msgspec
from msgspec import Struct

from parley.client import Client, Conversation, CreateOptions, ServerProcess, connect
from parley.client.approval import OnApproval
from parley.testing.home import MODEL, Home, ServerOptions
from parley.testing.model import TIMEOUT_SECONDS, ScriptedModel
from parley.wire.jsonrpc import encode
from parley.wire.mcp import FULL_VERSION

__all__ = ["ParleyProcess", "RawParley"]


class _Server:
    """A home and a server process that uses it.

    At the end of the `async with` block, every message from the server is validated if the `mcp` package is
    installed. `checked=False` skips the validation, for tests with very many messages.
    """

    process: ServerProcess

    def __init__(
        self, model: ScriptedModel, *, checked: bool | None = None, **options: Unpack[ServerOptions]
    ) -> None:
        self.model = model
        self._checked = find_spec("mcp_types") is not None if checked is None else checked
        self.frames: list[bytes] = []
        """All messages that the server has sent."""
        self._home = Home(model, **options)

    @property
    def home(self) -> Path:
        return self._home.path

    @property
    def work(self) -> Path:
        """The working directory of the conversations."""
        return self._home.work

    @property
    def pid(self) -> int:
        return self.process.pid

    def config(self, text: str) -> None:
        """Rewrite config.toml with the additional settings `text`. They apply to conversations that are created
        after this call.
        """
        self._home.write_config(text)

    def stderr_text(self) -> str:
        return self._home.stderr_text()

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> None:
        self.process.terminate()

    def close_stdin(self) -> None:
        self.process.close_stdin()

    async def exit_code(self) -> int:
        """Wait for the server to exit and return the exit code."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.process.wait()

    def _check_frames(self) -> None:
        if not self._checked:
            return
        from parley.testing.checks import check_message

        version = FULL_VERSION
        for frame in self.frames:
            version = _negotiated(frame) or version
            check_message(frame, version=version)


class _Initialized(Struct):
    protocol_version: str = msgspec.field(name="protocolVersion")


class _Answer(Struct):
    result: _Initialized


def _negotiated(frame: bytes) -> str | None:
    """Return the protocol version in the result of `initialize`, or None for any other message."""
    try:
        return msgspec.json.decode(frame, type=_Answer).result.protocol_version
    except msgspec.DecodeError:
        return None


class ParleyProcess(_Server):
    """A server with a client, used as `async with ParleyProcess(model) as parley`."""

    client: Client

    def __init__(
        self,
        model: ScriptedModel,
        *,
        protocol_version: str = FULL_VERSION,
        on_approval: OnApproval | None = None,
        checked: bool | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(model, checked=checked, **options)
        self._protocol_version, self._on_approval = protocol_version, on_approval
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> ParleyProcess:
        async with AsyncExitStack() as stack:
            self._home.open()
            stack.callback(self._home.close)
            self.process = self._home.server()
            self.client = await stack.enter_async_context(
                connect(
                    self.process,
                    protocol_version=self._protocol_version,
                    client_name="parley-testing",
                    on_approval=self._on_approval,
                    on_frame=self.frames.append,
                )
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if kind is None:
            self._check_frames()

    async def create(self, **options: Unpack[CreateOptions]) -> Conversation:
        """Create a conversation that uses the scripted model and has the working directory `work`."""
        return await self.client.create(model=MODEL, cwd=self.work, **options)


class RawParley(_Server):
    """A server whose messages the test itself writes and reads, without the Python client. It is used as
    `async with RawParley(model) as raw`.
    """

    async def __aenter__(self) -> RawParley:
        self._arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._home.open()
        try:
            self.process = self._home.server()
            await self.process.start(on_message=self._receive, on_end=lambda _: self._arrived.put_nowait(None))
        except BaseException:
            self._home.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.process.close()
        finally:
            self._home.close()
        if kind is None:
            self._check_frames()

    def _receive(self, line: bytes) -> None:
        self.frames.append(line)
        self._arrived.put_nowait(line)

    def write(self, data: bytes) -> None:
        """Write raw bytes. Each message must end with a newline."""
        self.process.send(data)

    def send(self, message: object) -> None:
        """Encode a message as JSON and write it as one line."""
        self.write(encode(message) + b"\n")

    async def read_message(self) -> Any:
        """Return the next message from the server, decoded.

        Raises:
            EOFError: the server's output has ended.
            TimeoutError: no message arrived within `TIMEOUT_SECONDS`.
        """
        if self._arrived.empty():
            async with asyncio.timeout(TIMEOUT_SECONDS):
                line = await self._arrived.get()
        else:
            line = self._arrived.get_nowait()
        if line is None:
            self._arrived.put_nowait(None)  # the next call must raise the same error
            raise EOFError("the server has ended")
        return msgspec.json.decode(line)

    async def expect(self, wanted: Callable[[Any], bool]) -> Any:
        """Return the next message from the server for which `wanted` returns True. The skipped messages remain in
        `frames`.

        Raises:
            EOFError, TimeoutError: as for `read_message`.
        """
        while not wanted(message := await self.read_message()):
            pass
        return message
