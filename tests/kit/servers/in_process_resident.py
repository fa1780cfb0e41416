"""A resident server in the process of the test, and a proxy socket that cuts connections."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kit.servers.empty_database import provide_database
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.http_choice import HttpChoice
from parley.app.resident import Resident
from parley.app.serving import Server
from parley.client import ResidentSocket
from parley.common.home import SOCKET
from parley.testing import ScriptedModel
from parley.testing.home import Home
from parley.wire.nodes import NODE_VERSIONS

__all__ = ["CuttingSocket", "InProcessResident"]


class InProcessResident:
    """The resident server of a home, without its process: `async with InProcessResident(model, path)`."""

    def __init__(
        self,
        model: ScriptedModel,
        home: Path,
        *,
        config: str = "",
        http: HttpChoice | None = None,
        env: Mapping[str, str] | None = None,
        node_versions: Sequence[str] = NODE_VERSIONS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the server. It serves HTTP if `http` is given."""
        self._files = Home(model, home=home, config=config, env=env or {})
        self._http, self._now, self._node_versions = http, now, node_versions

    async def __aenter__(self) -> Self:
        self._files.open()
        provide_database(self._files.environ)
        self._server = Server(
            environ=self._files.environ,
            server_dir=str(self._files.work),
            is_resident=True,
            node_versions=self._node_versions,
        )
        self.resident = Resident(self._server, str(self._files.path), http=self._http, now=self._now)
        self.resident.listen()
        await self.resident.listen_http()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            self.resident.stop()
            self.resident.stop()  # does not wait for turns
            await self.resident.shut_down()
            await self._server.close()
        self._files.close()

    @property
    def home(self) -> str:
        return str(self._files.path)

    @property
    def path(self) -> str:
        return os.path.join(self._files.path, SOCKET)

    @property
    def environ(self) -> dict[str, str]:
        return self._files.environ

    @property
    def work(self) -> Path:
        return self._files.work

    def socket(self, path: str | None = None) -> ResidentSocket:
        """Return a transport to the server, or to a proxy socket."""
        return ResidentSocket(path or self.path, env=self._files.environ, cwd=self._files.work)


class CuttingSocket:
    """A proxy socket that cuts each connection after a number of bytes from the server.

    Connection n is cut after `after[n]` bytes. Later connections are not cut. `cut()` cuts all connections.
    """

    def __init__(self, target: str, path: str, *, after: Iterable[int] = ()) -> None:
        self.path, self._target = path, target
        self._limits = iter(after)
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        limit = next(self._limits, None)
        from_server, to_server = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, to_server}
        try:
            async with asyncio.TaskGroup() as tasks:
                up = tasks.create_task(_copy(reader, to_server, None))
                await _copy(from_server, writer, limit)
                up.cancel()
        finally:
            for one in (writer, to_server):
                self._writers.discard(one)
                one.transport.abort()
                with suppress(OSError):
                    await one.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    """Copy bytes until the end of the input or until `limit` bytes were copied, and then end the output."""
    with suppress(OSError):
        while limit is None or limit > 0:
            data = await reader.read(65536 if limit is None else min(limit, 65536))
            if not data:
                break
            writer.write(data)
            await writer.drain()
            limit = None if limit is None else limit - len(data)
        if limit is None:
            writer.write_eof()
