"""The transport to the resident server of a home, over its unix socket.

The transport first sends a hello, as the relay `parley mcp` does. The hello contains the environment and the
working directory for the turns that this client begins. Reading never pauses, so the server never waits for the
client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Final, cast

from parley.common.home import SOCKET, named_home
from parley.common.resident_socket import (
    ANSWER_SECONDS,
    MAX_ANSWER_BYTES,
    RELAY,
    NoResident,
    Refused,
    decode_answer,
    encode_line,
    open_socket,
)
from parley.wire.framing import LineFramer

__all__ = ["ResidentSocket"]

BACKLOG_SECONDS: Final = 0.05
"""The number of seconds between two attempts to connect while the backlog of the server's socket is full."""

CLOSE_SECONDS: Final = 3.0
"""The maximum number of seconds to wait for the server to close its side of a connection that the client has ended.
"""


class ResidentSocket:
    """A transport to the resident server that listens on a unix socket."""

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        """Create a transport. The default path is the path of the socket in the home of this process.

        `env` is the environment, `cwd` is the working directory, and `overrides` contains the `-c` overrides for
        the turns that this client begins. By default, the environment and the working directory of this process are
        used, without overrides.
        """
        self.path = None if path is None else os.fspath(path)
        self.env, self.cwd, self.overrides = env, cwd, overrides
        self._protocol: _Protocol | None = None
        self._hello = b""

    async def start(self, *, on_message: Callable[[bytes], None], on_end: Callable[[int | None], None]) -> None:
        """Connect to the server, send the hello and wait for the response to the hello.

        Raises:
            OSError: there is no home, no server can be reached, or the server refuses this client.
        """
        self._on_message, self._on_end = on_message, on_end
        self._prepare()
        await self.restart()

    def _prepare(self) -> None:
        directory = os.getcwd() if self.cwd is None else os.path.abspath(self.cwd)
        env = dict(os.environ if self.env is None else self.env)
        if self.path is None:
            self.path = _path_in_home(env, directory)
        self._hello = encode_line(RELAY, env=env, cwd=directory, overrides=list(self.overrides))

    async def restart(self) -> None:
        """Reconnect after the end of the connection. The first line of the new connection (the hello) is the same
        as before.

        Raises:
            OSError: as for `start`.
        """
        assert self.path is not None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                channel = await _opened(self.path)
                try:
                    _, protocol = await asyncio.get_running_loop().create_unix_connection(
                        lambda: _Protocol(self._on_message, self._on_end), sock=channel
                    )
                except BaseException:
                    channel.close()
                    raise
                await protocol.greet(self._hello)
        except TimeoutError:
            raise TimeoutError(f"the resident server at {self.path} does not answer") from None
        self._protocol = protocol

    def send(self, data: bytes) -> None:
        if self._protocol is not None:
            self._protocol.send(data)

    async def close(self) -> None:
        if self._protocol is not None:
            await self._protocol.close()


class _Protocol(asyncio.Protocol):
    """The protocol of one connection. The server first sends its response to the hello, and then one message per
    line.
    """

    def __init__(self, on_message: Callable[[bytes], None], on_end: Callable[[int | None], None]) -> None:
        self._on_message, self._on_end = on_message, on_end
        # The size of a server's messages is not limited, because the snapshot of a long conversation is one line.
        self._framer = LineFramer(limit=sys.maxsize)
        self._answer: asyncio.Future[bytes] | None = asyncio.get_running_loop().create_future()
        self._greeted = self._is_closing = False
        self._start = b""
        self._lost = asyncio.Event()

    async def greet(self, hello: bytes) -> None:
        """Send the hello and wait for the response to the hello.

        Raises:
            OSError: the server exited, or refused this client.
        """
        assert self._answer is not None
        try:
            self.transport.write(hello)
            decode_answer(await self._answer)
            if self._lost.is_set():
                raise ConnectionError("the resident server ended during the handshake")
            self._greeted = True
        except NoResident as error:
            raise ConnectionError(str(error)) from None
        except Refused as error:
            raise ConnectionRefusedError(f"the resident server refused this client: {error}") from None
        finally:
            self._answer = None
            if not self._greeted:
                self.transport.abort()

    def send(self, data: bytes) -> None:
        if not self._is_closing and not self._lost.is_set():
            self.transport.write(data)

    async def close(self) -> None:
        """Shut down the sending side of the connection, and wait until the server has read all messages and closed
        the connection.
        """
        try:
            if not self._lost.is_set() and not self._is_closing:
                self._is_closing = True
                self.transport.write_eof()
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._lost.wait()
        except TimeoutError:
            pass
        finally:
            self.transport.abort()

    # --- callbacks of the event loop -----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._start += data
            if b"\n" not in self._start and len(self._start) <= MAX_ANSWER_BYTES:
                return
            line, _, data = self._start.partition(b"\n")
            self._answer.set_result(line)
        self._deliver(self._framer.feed(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the resident server ended during the handshake"))
            self._answer.exception()  # mark the exception as retrieved, because the caller may have been cancelled
        elif self._greeted:
            self._on_end(None)  # the server sends a truncated message again over the next connection

    def _deliver(self, lines: Sequence[object]) -> None:
        for line in lines:
            if isinstance(line, bytes):
                self._on_message(line)


async def _opened(path: str) -> socket.socket:
    """Connect to a socket without blocking the event loop, and return the connected socket. While the backlog of
    the server is full, try again.

    Raises:
        OSError: no server can be reached. The error contains the path.
    """
    while True:
        try:
            return open_socket(path, timeout_seconds=0)
        except BlockingIOError:
            pass  # the backlog of the server is full, so the client tries again
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, error.strerror, path) from None
        await asyncio.sleep(BACKLOG_SECONDS)


def _path_in_home(environ: Mapping[str, str], directory: str) -> str:
    home = named_home(environ, directory)
    if home is None:
        raise FileNotFoundError("no home: none of PARLEY_HOME, CODEX_HOME and HOME is set")
    return os.path.join(home.path, SOCKET)
