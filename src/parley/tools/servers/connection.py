"""One connection to a tool server, from its start to its end.

It runs in one task, because the library's contexts must be left in the task that entered them. Does not know which
turns use it, nor whether another connection follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from parley.config.types import ToolServer
from parley.ports.model import ToolSpec
from parley.tools.errors import CallFailed, NotStarted
from parley.tools.servers.failures import LOST, refusal
from parley.tools.servers.library import load
from parley.tools.servers.program import Program, environment

if TYPE_CHECKING:
    from anyio import CancelScope

    from parley.tools.servers.session import OnProgress, Session, Streams

__all__ = ["Connection"]

log: Final = logging.getLogger(__name__)

START_DIRECTORY: Final = "/"
"""The working directory of a program whose settings name none. Many programs load modules or settings from their
working directory. The server's working directory may be a project, where commands write files.
"""

CLOSE_SECONDS: Final = 0.7
"""How long an HTTP server may take to accept the end of its session."""

EXIT_SECONDS: Final = 0.5
"""How long a program that closed its output may take to exit, for its exit code to be reported."""

HTTP_ERROR: Final = 400
NOT_FOUND: Final = 404
"""The HTTP status that means that the session no longer exists."""


class Connection:
    """A connection that starts, is usable, or is over. It starts when the object is created."""

    def __init__(self, settings: ToolServer, environ: Mapping[str, str], *, answer_seconds: float) -> None:
        self._settings, self._environ, self._answer_seconds = settings, environ, answer_seconds
        self.began_at = asyncio.get_running_loop().time()
        self.tools: tuple[ToolSpec, ...] = ()
        """Under the server's names."""
        self.has_started = False
        """True once the server has listed its tools."""
        self.failure: str | None = None
        """Why it failed to start."""
        self.failed_at = 0.0
        """When it failed to start, by the clock of the event loop."""
        self._session: Session | None = None
        self._scope: CancelScope | None = None
        self._refusal: str | None = None
        self._is_loading = True
        self._is_lost = self._is_ending = self._tools_changed = False
        self._settled, self._wake = asyncio.Event(), asyncio.Event()
        self._calls: set[asyncio.Task[dict[str, Any]]] = set()
        self._task = asyncio.create_task(self._run())

    @property
    def is_settled(self) -> bool:
        """True if the connection has started or failed to start."""
        return self._settled.is_set()

    @property
    def is_usable(self) -> bool:
        """True if the connection is starting or can take calls."""
        return not (self._is_lost or self._is_ending or self.is_over)

    @property
    def is_over(self) -> bool:
        """True if the task of the connection has ended, and with it the program."""
        return self._task.done()

    async def settled(self) -> None:
        await self._settled.wait()

    async def call(self, tool: str, arguments: dict[str, Any] | None, progress: OnProgress) -> dict[str, Any]:
        """Call a tool. Cancelling tells the server to stop, and affects no other call.

        Raises:
            CallFailed: there is no result.
        """
        session = self._session
        if session is None:
            raise CallFailed(LOST)
        call = asyncio.create_task(session.call(tool, arguments, progress))
        self._calls.add(call)
        call.add_done_callback(self._forget_call)
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            call.cancel()  # it notifies the server while the caller returns
            raise
        if session.is_closed:
            self._mark_lost()  # now, not only when its task notices
        return call.result()

    async def end(self) -> None:
        """Close the session, and end the server's program if it has one."""
        self._is_ending = True
        self._wake.set()
        if self._is_loading:
            self._task.cancel()  # nothing was opened that must be closed in order
        elif not self.is_settled and self._scope is not None:
            self._scope.cancel()
        await asyncio.wait([self._task])
        self._settled.set()  # even if its task never began

    # --- its task --------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            try:
                await load()
            except ImportError as error:
                self._fail(f"the package `mcp` cannot be loaded: {error}")
                return
            finally:
                self._is_loading = False
            if self._is_ending:
                return
            if self._settings.command is not None:
                await self._run_program(self._settings.command)
            else:
                await self._run_http(self._settings.url or "")
        except Exception as error:
            self._record(error)
        finally:
            self._is_lost = True
            self._settled.set()
        if self._calls:
            await asyncio.wait(self._calls)  # the end of the session ends them

    async def _run_program(self, command: str) -> None:
        import anyio

        from parley.tools.servers.session import over_pipes

        env = environment(self._environ, self._settings.env)
        argv, cwd = (command, *self._settings.args), self._settings.cwd or START_DIRECTORY
        program = await Program.start(argv, env, name=self._settings.name, cwd=cwd)
        try:
            async with over_pipes(
                program, max_bytes=self._settings.max_answer_bytes, lost=self._mark_lost
            ) as streams:
                try:
                    with anyio.CancelScope() as self._scope:
                        await self._hold_session(streams)
                except Exception as error:  # recorded before the program is ended, which can take a while
                    if self._is_lost and not self.is_settled:
                        await program.wait(EXIT_SECONDS)
                        self._record(NotStarted(program.how_it_ended()))
                    else:
                        self._record(error)
        finally:
            await program.stop()

    async def _run_http(self, url: str) -> None:
        import anyio

        from parley.tools.servers.session import over_http

        token = self._token()
        with anyio.CancelScope() as self._scope:
            async with over_http(
                url, token, max_bytes=self._settings.max_answer_bytes, answered=self._note_answer
            ) as streams:
                try:
                    await self._hold_session(streams)
                except Exception as error:  # recorded before the session is closed, which can take a while
                    self._record(error)
                finally:
                    self._scope.deadline = anyio.current_time() + CLOSE_SECONDS

    async def _hold_session(self, streams: Streams) -> None:
        """Open a session and keep it until the connection is lost or ended."""
        from parley.tools.servers.session import open_session

        if self._is_ending:  # `end` found no scope to cancel
            return
        async with open_session(streams, self._settings.name, tools_changed=self._note_tools_changed) as session:
            await session.initialize(within_seconds=self._answer_seconds)
            self.tools = await session.tools(within_seconds=self._answer_seconds)
            self._session, self.has_started = session, True
            self._settled.set()
            try:
                await self._watch(session)
            finally:
                self._session = None

    async def _watch(self, session: Session) -> None:
        while self.is_usable:
            await self._wake.wait()
            self._wake.clear()
            if self._tools_changed and self.is_usable:
                self._tools_changed = False
                try:
                    self.tools = await session.tools(within_seconds=self._answer_seconds)
                except Exception as error:
                    self._record(error)  # the known tools stay

    def _token(self) -> str | None:
        variable = self._settings.bearer_token_env_var
        if variable is None:
            return None
        token = self._environ.get(variable, "")
        if not token:
            raise NotStarted(f"Missing environment variable: `{variable}`")
        if not (token.isascii() and token.isprintable()):
            raise NotStarted(f"environment variable `{variable}` does not hold a token")
        return token

    # --- state changes ----------------------------------------------------------------

    def _mark_lost(self) -> None:
        self._is_lost = True
        self._wake.set()

    def _note_tools_changed(self) -> None:
        self._tools_changed = True
        self._wake.set()

    def _note_answer(self, status: int, reason: str) -> None:
        self._refusal = refusal(status, reason) if status >= HTTP_ERROR else None
        if status == NOT_FOUND and self.is_settled:
            self._mark_lost()

    def _record(self, error: Exception) -> None:
        from parley.tools.servers.session import describe_error

        text = self._refusal or describe_error(error)
        log.info("tool server %s: %s", self._settings.name, text)
        if not self.is_settled and not self._is_ending:
            self._fail(text)

    def _fail(self, detail: str) -> None:
        self.failure, self.failed_at = detail, asyncio.get_running_loop().time()
        self._mark_lost()
        self._settled.set()

    def _forget_call(self, call: asyncio.Task[dict[str, Any]]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # marks it as retrieved: a cancelled caller does not read it
