"""Pools of tool servers, which are shared between conversations and leased to turns.

`calls.py` runs the tool calls and appends their events to the log.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from parley.config.types import ToolServer
from parley.errors import ShuttingDown
from parley.ports.model import ToolSpec
from parley.rpc.session import OnProgress
from parley.tools.errors import CallFailed, ToolServerFailed
from parley.tools.servers.connection import Connection
from parley.tools.servers.failures import TIMED_OUT, bad_name, not_stored, start_failure
from parley.tools.servers.names import disambiguated_name, is_server_name, qualified_name
from parley.tools.servers.server import Key, Server, Timing, key_of

__all__ = ["Lease", "RemoteTool", "ServerPool"]

SLACK_SECONDS: Final = 0.5
"""The time, in seconds, for which callers wait for a starting server beyond the time limit for its first response.
During this time, a server that has exceeded the time limit can be reported as failed.
"""


class RemoteTool:
    """A tool of a tool server that a turn can call."""

    def __init__(self, settings: ToolServer, server: Server, name: str) -> None:
        self.server_name, self.name, self._server = settings.name, name, server
        self._limit_seconds = settings.tool_timeout_seconds or None

    async def call(self, arguments: dict[str, Any] | None, *, progress: OnProgress) -> dict[str, Any]:
        """Call the tool and return its result: `content`, and `structuredContent` and `isError` if the server
        returned them.

        If the server has crashed, it is started again before the call. If the tool call is cancelled or takes
        longer than the setting `tool_timeout`, the server gets a cancellation of this call. Other tool calls are
        not affected. `progress` is called with each progress report and must not block.

        Raises:
            ToolServerFailed: the server did not start, did not respond in time, or did not return a valid result.
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
    """The tool servers that one turn uses, under the names from the settings of the turn."""

    def __init__(self, servers: Sequence[tuple[ToolServer, Server]]) -> None:
        self._servers = servers
        self._lists: list[tuple[ToolSpec, ...]] = []
        """The tools that each server listed at the last refresh."""
        self._tools: dict[str, RemoteTool] = {}
        self._specs: tuple[ToolSpec, ...] = ()

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the servers currently offer, sorted by name."""
        self._refresh()
        return self._specs

    def find(self, name: str) -> RemoteTool | None:
        """Return the tool that the model calls by `name`; None if there is no such tool."""
        self._refresh()
        return self._tools.get(name)

    def _refresh(self) -> None:
        """If the tool list of a server has changed since the last refresh, assign the names of all tools again."""
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
                if name not in self._tools:  # a server may list two tools with one name; the first one is used
                    self._tools[name] = RemoteTool(settings, server, spec.name)
                    specs.append(ToolSpec(name=name, description=spec.description, parameters=spec.parameters))
        self._specs = tuple(sorted(specs, key=lambda spec: spec.name))


async def _all_settled(connections: Sequence[Connection]) -> None:
    for connection in connections:
        await connection.settled()


class ServerPool:
    """The tool servers that share one environment. A server is started when a conversation first needs it."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        on_unused: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a pool.

        `environ` contains the environment variables from which the servers get their environment and their secrets.
        `timing` contains the time limits of the servers. `on_unused` is called when no turn has used any server of
        the pool for some time.
        """
        self._environ, self._timing, self._on_unused = environ, timing, on_unused
        self._servers: dict[Key, Server] = {}
        self._connections: set[Connection] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self, servers: Sequence[ToolServer]) -> tuple[tuple[str, str], ...]:
        """Start the servers that are not running, concurrently. Wait for the servers that start for the first time.

        The maximum wait is the time limit for one response plus `SLACK_SECONDS`, counted from the start of the last
        server. A server that takes longer continues to start, and the result contains no message about this server.

        Return the name and an error message of each server that failed to start, in the order of `servers`. The
        result includes servers whose last start failed and that are being started again.

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
            (settings.name, start_failure(settings, detail))
            for settings, detail in zip(servers, details, strict=True)
            if detail is not None
        )

    @asynccontextmanager
    async def lease(self, servers: Sequence[ToolServer]) -> AsyncIterator[Lease]:
        """Start the servers that are not running, and yield a lease. The servers run at least until the end of the
        `with` block.

        Before the lease is yielded, wait for the servers that start for the first time. The maximum wait is the
        time limit for one response plus `SLACK_SECONDS`, counted from the start of the last server.

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
        """End all servers and wait until they have ended. No server can be started afterwards."""
        self._is_closed = True
        for server in self._servers.values():
            server.stop()
        self._servers.clear()
        for connection in list(self._connections):
            self._end(connection)
        if self._endings:
            await asyncio.wait(self._endings)

    def _found(self, servers: Sequence[ToolServer]) -> list[Server | None]:
        """Return a list with one item for each of the `servers`: its `Server`, or None if no server can be started
        with these settings.
        """
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
        """Ensure that the servers are not ended as idle during the `with` block. Start the servers that are not
        running. The block begins when the servers that start for the first time have started or failed to start, or
        when the maximum wait is over.
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
            self._check_use()

    async def _wait_for(self, connections: Sequence[Connection]) -> None:
        clock = asyncio.get_running_loop().time
        # The time is counted from the start of the server, so that a second wait for a slow server is not longer.
        until = max(one.began_at for one in connections) + self._timing.answer_seconds + SLACK_SECONDS
        settled = asyncio.create_task(_all_settled(connections))
        try:
            await asyncio.wait([settled], timeout=max(until - clock(), 0))
        finally:
            settled.cancel()

    def _note_connection(self, connection: Connection) -> None:
        self._connections = {one for one in self._connections if not one.is_over} | {connection}
        if self._is_closed:
            self._end(connection)

    def _end_idle(self, key: Key) -> None:
        """End a server that has been idle for a long time. The record of a server that failed to start is kept.
        Otherwise, the next turn would wait for this server as if it had never been started.
        """
        server = self._servers[key]
        if server.failure is None:
            del self._servers[key]
        if server.last_connection is not None:
            self._end(server.last_connection)
        self._check_use()

    def _check_use(self) -> None:
        if not self._is_closed and not any(server.is_in_use for server in self._servers.values()):
            self._on_unused()

    def _end(self, connection: Connection) -> None:
        ending = asyncio.create_task(connection.end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)


def _why_unusable(settings: ToolServer) -> str | None:
    """Return the reason why a server cannot be started with these settings; None if the server can be started."""
    if not is_server_name(settings.name):
        return bad_name(settings.name)
    return not_stored(settings.missing) if settings.missing else None
