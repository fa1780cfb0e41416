"""One life of a tool server: reached, used, and left.

A life is one task, because the library's contexts must be left where they were entered. Does not
know who uses it, nor whether there will be another life.
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
"""Where a program starts if its settings name no directory. Many programs load modules or settings from where they
start, and the working directory of the server may be a project, in which commands write."""

GOODBYE_SECONDS: Final = 0.7
"""How long a far server may take to hear that its session is over; it will find out otherwise."""

EXIT_SECONDS: Final = 0.5
"""How long a program that closed its output may take to end, for its exit code to be known."""

HTTP_ERROR: Final = 400
NOT_FOUND: Final = 404
"""How a far server says that it has forgotten the session."""


class Connection:
    """A tool server that starts, runs, or is gone; begins when it is made."""

    def __init__(self, settings: ToolServer, environ: Mapping[str, str], *, answer_seconds: float) -> None:
        self._settings, self._environ, self._answer_seconds = settings, environ, answer_seconds
        self.began_at = asyncio.get_running_loop().time()
        self.tools: tuple[ToolSpec, ...] = ()
        """Under the server's own names."""
        self.has_started = False
        """Whether it ever came to say what it offers."""
        self.failure: str | None = None
        """Why it did not start."""
        self.failed_at = 0.0
        """When, by the clock of the event loop."""
        self._session: Session | None = None
        self._scope: CancelScope | None = None
        self._refusal: str | None = None
        self._is_loading = True
        self._is_lost = self._is_ending = self._tools_changed = False
        self._settled, self._wake = asyncio.Event(), asyncio.Event()
        self._calls: set[asyncio.Task[dict[str, Any]]] = set()
        self._life = asyncio.create_task(self._live())

    @property
    def is_settled(self) -> bool:
        """Whether it has started, or has not and will not."""
        return self._settled.is_set()

    @property
    def is_usable(self) -> bool:
        """Whether it answers, or may still come to."""
        return not (self._is_lost or self._is_ending or self.is_over)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self._life.done()

    async def settled(self) -> None:
        await self._settled.wait()

    async def call(self, tool: str, arguments: dict[str, Any] | None, progress: OnProgress) -> dict[str, Any]:
        """Call a tool. Cancelling tells the server to stop, and disturbs no other call.

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
            call.cancel()  # goes on telling the server, while the caller leaves
            raise
        if session.is_closed:
            self._lose()  # now, and not when that has come to the end of its life
        return call.result()

    async def end(self) -> None:
        """Leave the server, and end it if it is a program of ours."""
        self._is_ending = True
        self._wake.set()
        if self._is_loading:
            self._life.cancel()  # there is nothing yet that must be left in order
        elif not self.is_settled and self._scope is not None:
            self._scope.cancel()
        await asyncio.wait([self._life])
        self._settled.set()  # also of a life that never began

    # --- the life --------------------------------------------------------------------------

    async def _live(self) -> None:
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
                await self._live_by_pipes(self._settings.command)
            else:
                await self._live_by_http(self._settings.url or "")
        except Exception as error:
            self._note(error)
        finally:
            self._is_lost = True
            self._settled.set()
        if self._calls:
            await asyncio.wait(self._calls)  # the end of the session has answered them

    async def _live_by_pipes(self, command: str) -> None:
        import anyio

        from parley.tools.servers.session import over_pipes

        env = environment(self._environ, self._settings.env)
        argv, cwd = (command, *self._settings.args), self._settings.cwd or START_DIRECTORY
        program = await Program.start(argv, env, name=self._settings.name, cwd=cwd)
        try:
            async with over_pipes(program, max_bytes=self._settings.max_answer_bytes, lost=self._lose) as streams:
                try:
                    with anyio.CancelScope() as self._scope:
                        await self._talk(streams)
                except Exception as error:  # noted before the program is ended, which may take its time
                    if self._is_lost and not self.is_settled:
                        await program.wait(EXIT_SECONDS)
                        self._note(NotStarted(program.how_it_ended()))
                    else:
                        self._note(error)
        finally:
            await program.stop()

    async def _live_by_http(self, url: str) -> None:
        import anyio

        from parley.tools.servers.session import over_http

        token = self._token()
        with anyio.CancelScope() as self._scope:
            async with over_http(
                url, token, max_bytes=self._settings.max_answer_bytes, answered=self._note_answer
            ) as streams:
                try:
                    await self._talk(streams)
                except Exception as error:  # noted before the farewell, which may take its time
                    self._note(error)
                finally:
                    self._scope.deadline = anyio.current_time() + GOODBYE_SECONDS

    async def _talk(self, streams: Streams) -> None:
        """From the first word to the last."""
        from parley.tools.servers.session import talking

        if self._is_ending:  # since before there was a scope to cancel
            return
        async with talking(streams, self._settings.name, tools_changed=self._note_tools_changed) as session:
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
                    self._note(error)  # the tools that are known will do

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

    # --- what happens to it ----------------------------------------------------------------

    def _lose(self) -> None:
        self._is_lost = True
        self._wake.set()

    def _note_tools_changed(self) -> None:
        self._tools_changed = True
        self._wake.set()

    def _note_answer(self, status: int, reason: str) -> None:
        self._refusal = refusal(status, reason) if status >= HTTP_ERROR else None
        if status == NOT_FOUND and self.is_settled:
            self._lose()

    def _note(self, error: Exception) -> None:
        from parley.tools.servers.session import in_words

        words = self._refusal or in_words(error)
        log.info("tool server %s: %s", self._settings.name, words)
        if not self.is_settled and not self._is_ending:
            self._fail(words)

    def _fail(self, detail: str) -> None:
        self.failure, self.failed_at = detail, asyncio.get_running_loop().time()
        self._lose()
        self._settled.set()

    def _forget_call(self, call: asyncio.Task[dict[str, Any]]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # heard, or nobody waits for it any more
