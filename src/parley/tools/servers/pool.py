"""All tool servers of this process: shared between conversations, and lent to one turn at a time.

Does not know what a call looks like in a conversation; `calls.py` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from parley.config.types import ToolServer
from parley.errors import ShuttingDown
from parley.ports.model import ToolSpec
from parley.tools.servers.connection import Connection
from parley.tools.servers.failures import ToolServerFailed, bad_name, start_failure
from parley.tools.servers.library import load
from parley.tools.servers.names import is_server_name, qualified_name
from parley.tools.servers.server import Key, Patience, Server, key_of

if TYPE_CHECKING:
    from parley.tools.servers.session import OnProgress

__all__ = ["Lease", "RemoteTool", "ServerPool"]

SLACK_SECONDS: Final = 0.5
"""What a wait adds to the time that a server has for its first answer, so that whoever waits for one
that never answers is still told so."""


class RemoteTool:
    """A tool of a tool server."""

    def __init__(self, server_name: str, server: Server, name: str) -> None:
        self.server_name, self.name, self._server = server_name, name, server

    async def call(self, arguments: dict[str, Any] | None, *, progress: OnProgress) -> dict[str, Any]:
        """Call it, and return its result: `content`, and where given `structuredContent` and `isError`.

        A server that has crashed is started again first. Cancelling tells the server to stop, and
        disturbs nobody else. `progress` must not block.

        Raises:
            ToolServerFailed: there is no result.
        """
        connection = self._server.connection()
        await connection.settled()
        if connection.failure is not None:
            raise ToolServerFailed(self.server_name, self.name, connection.failure)
        from parley.tools.servers.session import CallFailed

        try:
            return await connection.call(self.name, arguments, progress)
        except CallFailed as error:
            raise ToolServerFailed(self.server_name, self.name, error.detail) from None


class Lease:
    """The tool servers of one turn, by the names that its settings give them."""

    def __init__(self, servers: Sequence[tuple[str, Server]]) -> None:
        self._servers = servers

    def specs(self) -> tuple[ToolSpec, ...]:
        """What they offer by now, in the order of the names."""
        offered = self._offered()
        return tuple(
            ToolSpec(name=name, description=spec.description, parameters=spec.parameters)
            for name, (_, spec) in sorted(offered.items())
        )

    def find(self, name: str) -> RemoteTool | None:
        """The tool that a model calls so."""
        found = self._offered().get(name)
        return None if found is None else found[0]

    def _offered(self) -> dict[str, tuple[RemoteTool, ToolSpec]]:
        offered: dict[str, tuple[RemoteTool, ToolSpec]] = {}
        for server_name, server in self._servers:
            for spec in server.tools:
                tool = RemoteTool(server_name, server, spec.name)
                offered.setdefault(qualified_name(server_name, spec.name), (tool, spec))
        return offered


class ServerPool:
    """One for the whole process; made early, it does nothing until a tool server is configured."""

    def __init__(self, environ: Mapping[str, str], *, patience: Patience = Patience()) -> None:  # noqa: B008 - frozen
        self._environ, self._patience = environ, patience
        self._servers: dict[Key, Server] = {}
        self._connections: set[Connection] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self, servers: Sequence[ToolServer]) -> tuple[str, ...]:
        """Start those that do not run, all at once, and wait for those that still start.

        Returns a sentence for each that could not be started, in order. One that needs longer than
        the wait goes on starting and is not among them.

        Raises:
            ShuttingDown: the pool is closed.
        """
        found = self._found(servers)
        async with self._held([server for server in found if server is not None]):
            details = [
                bad_name(settings.name) if server is None else server.failure
                for settings, server in zip(servers, found, strict=True)
            ]
        return tuple(
            start_failure(settings, detail)
            for settings, detail in zip(servers, details, strict=True)
            if detail is not None
        )

    @asynccontextmanager
    async def lease(self, servers: Sequence[ToolServer]) -> AsyncIterator[Lease]:
        """Keep these servers running; those that do not run are started, and waited for as in `start`.

        Raises:
            ShuttingDown: the pool is closed.
        """
        named = [
            (settings.name, server)
            for settings, server in zip(servers, self._found(servers), strict=True)
            if server is not None
        ]
        async with self._held([server for _, server in named]):
            yield Lease(named)

    async def close(self) -> None:
        """End them all; nothing of them is left running. No later use starts one."""
        self._is_closed = True
        for server in self._servers.values():
            server.stop()
        self._servers.clear()
        for connection in list(self._connections):
            self._end(connection)
        if self._endings:
            await asyncio.wait(self._endings)

    def _found(self, servers: Sequence[ToolServer]) -> list[Server | None]:
        """The server for each of the settings; none for those whose name cannot be used."""
        if self._is_closed:
            raise ShuttingDown
        return [self._server(settings) if is_server_name(settings.name) else None for settings in servers]

    def _server(self, settings: ToolServer) -> Server:
        key = key_of(settings)
        if key not in self._servers:
            self._servers[key] = Server(
                settings,
                self._environ,
                self._patience,
                opened=self._note_connection,
                idle=lambda: self._forget(key),
            )
        return self._servers[key]

    @asynccontextmanager
    async def _held(self, servers: Sequence[Server]) -> AsyncIterator[None]:
        """Keep these, and go on when they have started, or when that takes too long."""
        for server in servers:
            server.hold()
        try:
            starting = [server.connection() for server in servers]
            unsettled = [one for one in starting if not one.is_settled]
            waits = [asyncio.create_task(one.settled()) for one in unsettled]
            if waits:
                clock = asyncio.get_running_loop().time
                # From its beginning on: who waits a second time for one that is slow waits no longer in all.
                until = max(one.began_at for one in unsettled) + self._patience.answer_seconds + SLACK_SECONDS
                try:
                    asked_at = clock()
                    with suppress(ImportError):  # each server will say so
                        await load()
                    until += clock() - asked_at  # not on the servers' time
                    await asyncio.wait(waits, timeout=max(until - clock(), 0))
                finally:
                    for wait in waits:
                        wait.cancel()
            yield
        finally:
            for server in servers:
                server.release()

    def _note_connection(self, connection: Connection) -> None:
        self._connections = {one for one in self._connections if not one.is_over} | {connection}
        if self._is_closed:
            self._end(connection)

    def _forget(self, key: Key) -> None:
        """Nobody has used this server for long."""
        server = self._servers.pop(key, None)
        if server is not None and server.last_connection is not None:
            self._end(server.last_connection)

    def _end(self, connection: Connection) -> None:
        ending = asyncio.create_task(connection.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
