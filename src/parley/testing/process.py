"""A real server in a process of its own, driven by the client or by hand."""

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

from parley.client import Child, Client, Conversation, CreateOptions, connect
from parley.client.questions import OnQuestion
from parley.testing.home import MODEL, Home, ServerOptions
from parley.testing.model import PATIENCE_SECONDS, ScriptedModel
from parley.wire.jsonrpc import encode
from parley.wire.mcp import FULL_VERSION

__all__ = ["ParleyProcess", "RawParley"]


class _Server:
    """What both kinds have in common: a home, and a process to be watched and ended.

    At the end of the block every message of the server is checked, if the `mcp` package is
    there; `checked=False` leaves that out where a test provokes a very great many.
    """

    child: Child

    def __init__(
        self, model: ScriptedModel, *, checked: bool | None = None, **options: Unpack[ServerOptions]
    ) -> None:
        self.model = model
        self._checked = find_spec("mcp_types") is not None if checked is None else checked
        self.frames: list[bytes] = []
        """Every message of the server, as it came."""
        self._home = Home(model, **options)

    @property
    def home(self) -> Path:
        return self._home.path

    @property
    def work(self) -> Path:
        """The working directory of its conversations."""
        return self._home.work

    @property
    def pid(self) -> int:
        return self.child.pid

    def config(self, text: str) -> None:
        """Write config.toml anew, with `text` in addition; conversations created from now on have it."""
        self._home.write_config(text)

    def stderr_text(self) -> str:
        return self._home.stderr_text()

    def kill(self) -> None:
        self.child.kill()

    def terminate(self) -> None:
        self.child.terminate()

    def close_stdin(self) -> None:
        self.child.close_stdin()

    async def exit_code(self) -> int:
        """The exit code, once the server has exited, which must be soon."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.child.wait()

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
    """The version that this message settles on, if it is the answer to `initialize`."""
    try:
        return msgspec.json.decode(frame, type=_Answer).result.protocol_version
    except msgspec.DecodeError:
        return None


class ParleyProcess(_Server):
    """`async with ParleyProcess(model) as parley`: a server, with a client connected to it."""

    client: Client

    def __init__(
        self,
        model: ScriptedModel,
        *,
        protocol_version: str = FULL_VERSION,
        on_question: OnQuestion | None = None,
        checked: bool | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(model, checked=checked, **options)
        self._protocol_version, self._on_question = protocol_version, on_question
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> ParleyProcess:
        async with AsyncExitStack() as stack:
            self._home.open()
            stack.callback(self._home.close)
            self.client = await stack.enter_async_context(
                connect(
                    self._home.command,
                    env=self._home.environ,
                    cwd=self._home.work,
                    stderr=self._home.stderr,
                    protocol_version=self._protocol_version,
                    client_name="parley-testing",
                    on_question=self._on_question,
                    on_frame=self.frames.append,
                )
            )
            self.child = self.client.process
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if kind is None:
            self._check_frames()

    async def create(self, **options: Unpack[CreateOptions]) -> Conversation:
        """A new conversation with the scripted model, in the work directory."""
        return await self.client.create(model=MODEL, cwd=self.work, **options)


class RawParley(_Server):
    """`async with RawParley(model) as raw`: a server without a client, to speak the wire by hand."""

    async def __aenter__(self) -> RawParley:
        self._arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._home.open()
        try:
            self.child = await Child.start(
                self._home.command,
                on_line=self._take,
                on_end=lambda: self._arrived.put_nowait(None),
                env=self._home.environ,
                cwd=self._home.work,
                stderr=self._home.stderr,
            )
        except BaseException:
            self._home.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.child.close()
        finally:
            self._home.close()
        if kind is None:
            self._check_frames()

    def _take(self, line: bytes) -> None:
        self.frames.append(line)
        self._arrived.put_nowait(line)

    def write(self, data: bytes) -> None:
        """Write bytes as they are; a message needs its own line end."""
        self.child.write(data)

    def send(self, message: object) -> None:
        """Write one message."""
        self.write(encode(message) + b"\n")

    async def read_message(self) -> Any:
        """The next message of the server, decoded.

        Raises:
            EOFError: the server has ended.
            TimeoutError: nothing came.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await self._arrived.get()
        if line is None:
            self._arrived.put_nowait(None)  # it stays ended
            raise EOFError("the server has ended")
        return msgspec.json.decode(line)

    async def expect(self, wanted: Callable[[Any], bool]) -> Any:
        """The next message that fits; those before it are skipped, and stay in `frames`.

        Raises:
            EOFError, TimeoutError: as for `read_message`.
        """
        while not wanted(message := await self.read_message()):
            pass
        return message
