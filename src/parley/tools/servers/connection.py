"""One connection to a tool server, from its start to its end.

`server.py` decides when a connection is replaced with a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from parley.config.secret_settings import secrets_of_tool_server
from parley.config.types import ToolServer
from parley.ports.model import ToolSpec
from parley.rpc.errors import SessionLost
from parley.rpc.session import OnProgress, Session
from parley.rpc.streamable_http import StreamableHttp
from parley.tools.errors import CallFailed, NotStarted
from parley.tools.servers.failures import LOST, describe
from parley.tools.servers.headers import request_headers
from parley.tools.servers.program import Program, environment
from parley.tools.servers.program_carrier import ProgramCarrier
from parley.tools.servers.session import ToolSession

__all__ = ["Connection"]

log: Final = logging.getLogger(__name__)

START_DIRECTORY: Final = "/"
"""The working directory of a program if the settings do not name a directory. Parley's own working directory is not
used, because it may be a project to which commands write. Many programs load modules or settings from their working
directory.
"""

CLOSE_SECONDS: Final = 0.7
"""The maximum time, in seconds, that an HTTP server may take to end its session."""

EXIT_SECONDS: Final = 0.5
"""The maximum time, in seconds, to wait for a program to exit after it has closed its output. After the exit, the
exit code can be reported.
"""


class Connection:
    """A connection to a tool server. The connection starts when the object is created."""

    def __init__(self, settings: ToolServer, environ: Mapping[str, str], *, answer_seconds: float) -> None:
        self._settings, self._environ, self._answer_seconds = settings, environ, answer_seconds
        self.began_at = asyncio.get_running_loop().time()
        self.tools: tuple[ToolSpec, ...] = ()
        """The tools that the server has listed, under the server's own names."""
        self.has_started = False
        """True once the server has listed its tools."""
        self.failure: str | None = None
        """The reason why the connection failed to start; None if it did not fail."""
        self.failed_at = 0.0
        """The time when the connection failed to start, in seconds of the event loop's clock."""
        self._rpc = Session(max_bytes=settings.max_answer_bytes, on_tools_changed=self._note_tools_changed)
        self._session = ToolSession(self._rpc, settings.name)
        self._program: Program | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []
        """The functions that close the parts of the connection. They are called in reverse order."""
        self._settled = asyncio.Event()
        self._is_ending = self._tools_changed = False
        self._refreshing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._starting = asyncio.create_task(self._start())

    @property
    def is_settled(self) -> bool:
        """True if the connection has started or failed to start."""
        return self._settled.is_set()

    @property
    def is_usable(self) -> bool:
        """True if the connection is starting or can take tool calls."""
        return not (self._rpc.has_ended or self._is_ending)

    @property
    def is_over(self) -> bool:
        """True if the connection is closed and the program, if there is one, has ended."""
        return self._closing is not None and self._closing.done()

    async def settled(self) -> None:
        await self._settled.wait()

    async def call(self, tool: str, arguments: dict[str, Any] | None, progress: OnProgress) -> dict[str, Any]:
        """Call a tool and return its result. `progress` is called with each progress report. If the tool call is
        cancelled, send a cancellation to the server. Other tool calls are not affected.

        Raises:
            CallFailed: the connection was lost, or the server did not return a valid result.
        """
        if not self.has_started:
            raise CallFailed(LOST)
        return await self._session.call(tool, arguments, progress)

    async def end(self) -> None:
        """Close the session, end the server's program if it has one, and wait until both have ended."""
        self._is_ending = True
        self._close()
        assert self._closing is not None
        await asyncio.wait([self._closing])

    # --- the start -----------------------------------------------------------------------

    async def _start(self) -> None:
        try:
            if self._settings.command is not None:
                await self._open_program(self._settings.command)
            else:
                await self._open_http(self._settings.url or "")
            async with asyncio.timeout(self._answer_seconds):
                await self._rpc.open()
            async with asyncio.timeout(self._answer_seconds):
                self.tools = await self._session.tools()
            self.has_started = True
            if self._tools_changed:
                self._note_tools_changed()
        except Exception as error:
            if isinstance(error, SessionLost) and self._program is not None:
                await self._program.wait(EXIT_SECONDS)
                error = NotStarted(self._program.how_it_ended())
            self._record(error)
            self._close()
        finally:
            self._settled.set()

    async def _open_program(self, command: str) -> None:
        env = environment(self._environ, self._settings.env)
        argv, cwd = (command, *self._settings.args), self._settings.cwd or START_DIRECTORY
        self._program = await Program.start(
            argv, env, name=self._settings.name, cwd=cwd, secrets=secrets_of_tool_server(self._settings)
        )
        self._closers.append(self._program.stop)
        carrier = ProgramCarrier(
            self._program, self._rpc, max_bytes=self._settings.max_answer_bytes, lost=self._mark_lost
        )
        self._closers.append(carrier.close)
        self._rpc.carrier = carrier

    async def _open_http(self, url: str) -> None:
        carrier = StreamableHttp(
            url,
            self._rpc,
            headers=request_headers(self._settings, self._environ),
            environ=self._environ,
            follow_within_origin=True,
            on_gone=self._mark_lost,
        )
        self._closers.append(lambda: carrier.close(within_seconds=CLOSE_SECONDS))
        self._rpc.carrier = carrier
        await carrier.start()

    def _record(self, error: Exception) -> None:
        text = describe(error)
        log.info("tool server %s: %s", self._settings.name, text)
        if not self.is_settled and not self._is_ending:
            self.failure, self.failed_at = text, asyncio.get_running_loop().time()

    # --- a change of the tools -----------------------------------------------------------

    def _note_tools_changed(self) -> None:
        self._tools_changed = True
        if self.has_started and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        while self._tools_changed and self.is_usable:
            self._tools_changed = False
            try:
                async with asyncio.timeout(self._answer_seconds):
                    self.tools = await self._session.tools()
            except Exception as error:
                self._record(error)  # keep the previous list of tools

    # --- the end -------------------------------------------------------------------------

    def _mark_lost(self) -> None:
        """Make all running tool calls fail, because the server can no longer be reached. Close the connection,
        unless it is still starting. The task that starts a connection also closes it if the start fails.
        """
        self._rpc.end()
        if self.has_started:
            self._close()

    def _close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_all())

    async def _close_all(self) -> None:
        if self._is_ending and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        self._settled.set()  # the start may never have begun
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._rpc.end()
        for close in reversed(self._closers):
            try:
                await close()
            except Exception:
                log.exception("tool server %s: failed to close a connection", self._settings.name)
