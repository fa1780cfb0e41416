"""All tool servers of this process, shared between conversations and leased to turns.

Does not know the events of a call; `calls.py` does.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from parley.config.types import ToolServer
from parley.errors import ShuttingDown
from parley.ports.model import ToolSpec
from parley.tools.errors import CallFailed, ToolServerFailed
from parley.tools.servers.connection import Connection
from parley.tools.servers.failures import TIMED_OUT, bad_name, not_stored, start_failure
from parley.tools.servers.library import loaded
from parley.tools.servers.names import disambiguated_name, is_server_name, qualified_name
from parley.tools.servers.server import Key, Server, Timing, key_of

if TYPE_CHECKING:
    from parley.tools.servers.session import OnProgress

__all__ = ["Lease", "RemoteTool", "ServerPool"]

SLACK_SECONDS: Final = 0.5
"""Added to the time that a server has for its first answer, so that a caller still gets the failure of a server
that never answers.
"""


class RemoteTool:
    """A tool of a tool server."""

    def __init__(self, settings: ToolServer, server: Server, name: str) -> None:
        self.server_name, self.name, self._server = settings.name, name, server
        self._limit_seconds = settings.tool_timeout_seconds or None

    async def call(self, arguments: dict[str, Any] | None, *, progress: OnProgress) -> dict[str, Any]:
        """Call the tool and return its result: `content`, and if given `structuredContent` and `isError`.

        A server that has crashed is started again first. A cancellation or the end of `tool_timeout` tells the
        server to stop this call and affects no other call. `progress` must not block.

        Raises:
            ToolServerFailed: there is no result.
        """
        connection = self._server.connection()
        try:
            async with asyncio.timeout(self._limit_seconds):
                await connection.settled()
                if connection.failure is not None:
                    raise CallFailed(connection.failure)
                return await connection.call(self.name, arguments, progress)
        except TimeoutError:
            raise ToolServerFailed(self.server_name, self.name, TIMED_OUT) from None
        except CallFailed as error:
            raise ToolServerFailed(self.server_name, self.name, error.detail) from None


class Lease:
    """The tool servers of one turn, under the names in its settings."""

    def __init__(self, servers: Sequence[tuple[ToolServer, Server]]) -> None:
        self._servers = servers
        self._lists: list[tuple[ToolSpec, ...]] = []
        """The tools of each server from which `_tools` and `_specs` were made."""
        self._tools: dict[str, RemoteTool] = {}
        self._specs: tuple[ToolSpec, ...] = ()

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the servers offer now, sorted by name."""
        self._refresh()
        return self._specs

    def find(self, name: str) -> RemoteTool | None:
        """Return the tool that a model calls by this name."""
        self._refresh()
        return self._tools.get(name)

    def _refresh(self) -> None:
        """Name all tools again if a server's list has changed."""
        lists = [server.tools for _, server in self._servers]
        if len(lists) == len(self._lists) and all(map(operator.is_, lists, self._lists)):
            return
        self._lists, self._tools = lists, {}
        specs: list[ToolSpec] = []
        for (settings, server), offered in zip(self._servers, lists, strict=True):
            for spec in offered:
                name = qualified_name(settings.name, spec.name)
                if name in self._tools:
                    name = disambiguated_name(settings.name, spec.name)
                if name not in self._tools:  # otherwise the server lists two of the same name
                    self._tools[name] = RemoteTool(settings, server, spec.name)
                    specs.append(ToolSpec(name=name, description=spec.description, parameters=spec.parameters))
        self._specs = tuple(sorted(specs, key=lambda spec: spec.name))


async def _all_settled(connections: Sequence[Connection]) -> None:
    for connection in connections:
        await connection.settled()


class ServerPool:
    """The tool servers of the process. Does nothing until a conversation has one in its settings."""

    def __init__(self, environ: Mapping[str, str], *, timing: Timing = Timing()) -> None:  # noqa: B008 - frozen
        self._environ, self._timing = environ, timing
        self._servers: dict[Key, Server] = {}
        self._connections: set[Connection] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self, servers: Sequence[ToolServer]) -> tuple[str, ...]:
        """Start the servers that do not run, concurrently, and wait for those that start for the first time.

        The wait ends half a second after the time limit of one answer, counted from the start of the last server.
        The import of the client library, once in a process, is not counted. Returns a text for each server that
        failed to start, in order, even while it is being started again. A server that takes longer than the wait
        continues to start, and has no text.

        Raises:
            ShuttingDown: the pool is closed.
        """
        found = self._found(servers)
        async with self._held([server for server in found if server is not None]):
            details = [
                _why_unusable(settings) if server is None else server.failure
                for settings, server in zip(servers, found, strict=True)
            ]
        return tuple(
            start_failure(settings, detail)
            for settings, detail in zip(servers, details, strict=True)
            if detail is not None
        )

    @asynccontextmanager
    async def lease(self, servers: Sequence[ToolServer]) -> AsyncIterator[Lease]:
        """Keep these servers running during the lease. Servers that do not run are started, and the method waits
        for them as `start` does.

        Raises:
            ShuttingDown: the pool is closed.
        """
        named = [
            (settings, server)
            for settings, server in zip(servers, self._found(servers), strict=True)
            if server is not None
        ]
        async with self._held([server for _, server in named]):
            yield Lease(named)

    async def close(self) -> None:
        """End all servers and wait until they have ended. No server is started afterwards."""
        self._is_closed = True
        for server in self._servers.values():
            server.stop()
        self._servers.clear()
        for connection in list(self._connections):
            self._end(connection)
        if self._endings:
            await asyncio.wait(self._endings)

    def _found(self, servers: Sequence[ToolServer]) -> list[Server | None]:
        """Return the server for each of the settings; None for settings that cannot be used."""
        if self._is_closed:
            raise ShuttingDown
        return [self._server(settings) if _why_unusable(settings) is None else None for settings in servers]

    def _server(self, settings: ToolServer) -> Server:
        key = key_of(settings)
        if key not in self._servers:
            self._servers[key] = Server(
                settings,
                self._environ,
                self._timing,
                opened=self._note_connection,
                idle=lambda: self._end_idle(key),
            )
        return self._servers[key]

    @asynccontextmanager
    async def _held(self, servers: Sequence[Server]) -> AsyncIterator[None]:
        """Keep these servers running during the block. The block begins when they have started, or when that
        takes too long.
        """
        for server in servers:
            server.hold()
        try:
            connections = [(server, server.connection()) for server in servers]
            awaited = [connection for server, connection in connections if server.is_awaited]
            if awaited:
                await self._wait_for(awaited)
            yield
        finally:
            for server in servers:
                server.release()

    async def _wait_for(self, connections: Sequence[Connection]) -> None:
        clock = asyncio.get_running_loop().time
        # Counted from the start: a second wait for the same slow server does not begin anew.
        until = max(one.began_at for one in connections) + self._timing.answer_seconds + SLACK_SECONDS
        settled = asyncio.create_task(_all_settled(connections))
        loading = asyncio.create_task(loaded())
        try:
            asked_at = clock()
            await asyncio.wait([loading, settled], return_when=asyncio.FIRST_COMPLETED)
            until += clock() - asked_at  # the import does not count
            await asyncio.wait([settled], timeout=max(until - clock(), 0))
        finally:
            settled.cancel()
            loading.cancel()

    def _note_connection(self, connection: Connection) -> None:
        self._connections = {one for one in self._connections if not one.is_over} | {connection}
        if self._is_closed:
            self._end(connection)

    def _end_idle(self, key: Key) -> None:
        """End a server that was idle for long. A failed server is kept, because turns would wait for the first
        start of a new one.
        """
        server = self._servers[key]
        if server.failure is None:
            del self._servers[key]
        if server.last_connection is not None:
            self._end(server.last_connection)

    def _end(self, connection: Connection) -> None:
        ending = asyncio.create_task(connection.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)


def _why_unusable(settings: ToolServer) -> str | None:
    """Return why a server cannot be started with these settings; None if it can."""
    if not is_server_name(settings.name):
        return bad_name(settings.name)
    return not_stored(settings.missing) if settings.missing else None
