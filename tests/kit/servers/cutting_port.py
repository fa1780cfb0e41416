"""A port on the loopback that passes connections on to a server and can cut them."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["CuttingPort"]


class CuttingPort:
    """Connections to a URL: `async with CuttingPort(url) as port: ... port.url ... port.cut()`."""

    def __init__(self, url: str, *, every: int | None = None, keeps_host: bool = False) -> None:
        """Create the port.

        With `every`, a connection is cut after this many bytes from the server. With `keeps_host`, requests name
        this port instead of the server's port as their host.
        """
        self._target, self._every, self._keeps_host = urlsplit(url), every, keeps_host
        self._writers: set[asyncio.StreamWriter] = set()
        self.refuses = False
        """True if new connections are closed at once."""
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{self._target.scheme}://127.0.0.1:{port}{self._target.path}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def stop_listening(self) -> None:
        """Refuse connections, as the system does where no program listens, and cut all connections."""
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def listen_again(self) -> None:
        """Accept connections at the same address again."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", urlsplit(self.url).port)

    def cut(self) -> None:
        """Cut all connections."""
        self.cuts += 1
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._ask(reader, back), self._answer(there, writer, self._every))
        except OSError:
            pass
        finally:
            for one in (writer, back):
                one.transport.abort()
                self._writers.discard(one)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours, theirs = urlsplit(self.url).netloc.encode(), self._target.netloc.encode()
        while data := await reader.read(65536):
            writer.write(data if self._keeps_host else data.replace(b"Host: " + ours, b"Host: " + theirs))
            await writer.drain()
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None) -> None:
        while data := await reader.read(65536 if most is None else min(most, 65536)):
            writer.write(data)
            await writer.drain()
            if most is not None:
                most -= len(data)
                if most <= 0:
                    self.cuts += 1
                    raise ConnectionResetError
        writer.transport.abort()
