"""A port on the loopback that passes connections on to a PostgreSQL server, and can cut, refuse or delay them."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["DatabasePort"]

Direction = Literal["request", "answer"]


class DatabasePort:
    """A port of a database: `async with DatabasePort(url) as port: ... PostgresStore(port.url) ...`."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._held = asyncio.Event()
        self._cut_at: tuple[Direction, int] | None = None
        self._marker = b""
        self._marked: asyncio.StreamWriter | None = None
        """The connection whose bytes are counted."""
        self.delay_seconds = 0.0
        """The time for which bytes are held back before they are passed on, in seconds."""
        self.refuses = False
        """True if new connections are closed at once."""
        self.cuts = 0
        self.accepted = 0
        """The number of connections so far."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        login = self._target.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._target._replace(netloc=f"{login}@127.0.0.1:{port}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._flows.set()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut all connections. Bytes that were already passed on still reach the server."""
        self.cuts += 1
        self._cut_at = None
        for writer in tuple(self._writers):
            writer.close()
        self._writers.clear()

    def cut_after(self, direction: Direction, size: int, *, marker: bytes) -> None:
        """Cut all connections after `size` bytes of requests or of answers.

        The bytes are counted from the next request that contains `marker`, on the connection of this request.
        """
        self._cut_at, self._marker, self._marked = (direction, size), marker, None

    def target(self, url: str) -> None:
        """Pass new connections on to another server, as a load balancer does after a failover."""
        self._target = urlsplit(url)

    def hold(self) -> None:
        """Pass no bytes on until `flow` is called."""
        self._flows.clear()
        self._held.clear()

    async def wait_held(self) -> None:
        """Wait until bytes have arrived that are not passed on."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._held.wait()

    def flow(self) -> None:
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refuses:
            writer.close()
            return
        try:
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        for work in (self._pass(reader, back, writer, "request"), self._pass(there, writer, back, "answer")):
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        try:
            while data := await reader.read(65536):
                if not self._flows.is_set():
                    self._held.set()
                    await self._flows.wait()
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                client = other if direction == "request" else writer
                if self._cut_at is not None and self._marked is None and direction == "request":
                    self._marked = client if self._marker in data else None
                if self._cut_at is not None and self._cut_at[0] == direction and self._marked is client:
                    rest = self._cut_at[1] - len(data)
                    if rest <= 0:
                        writer.write(data[: self._cut_at[1]])
                        self.cut()
                        return
                    self._cut_at = direction, rest
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            for one in (writer, other):
                one.close()
                self._writers.discard(one)
