"""The tool servers of one conversation: having them started, and saying which cannot be.

They belong to the process; here it is only known which failures the log has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from parley.config.types import Settings
from parley.errors import TOOL_SERVER_FAILED
from parley.ports.tools import Tools
from parley.wire.events import ErrorEvent
from parley.wire.text import replace_surrogates

__all__ = ["ToolServers"]


class ToolServers:
    """Started when a conversation begins, and looked after when a turn does."""

    def __init__(self, tools: Tools, append: Callable[[ErrorEvent], Awaitable[None]]) -> None:
        self._tools, self._append = tools, append
        self._told: set[str] = set()
        """Of which servers it was said that they cannot be started: of each, once. Why may vary."""
        self._starting: asyncio.Task[None] | None = None

    def begin(self, settings: Settings) -> None:
        """Start them while others go on."""
        if settings.mcp_servers:
            self._starting = asyncio.create_task(self._start(settings))

    @property
    def is_starting(self) -> bool:
        """Whether what `begin` began is under way."""
        return self._starting is not None and not self._starting.done()

    async def begun(self) -> None:
        """Return when what `begin` began is done, or nobody wants to wait for it any more."""
        if self._starting is not None:
            await asyncio.wait({self._starting})

    def stop_waiting(self) -> None:
        """They go on starting; what fails is said when the next turn begins."""
        if self._starting is not None:
            self._starting.cancel()

    async def ready(self, settings: Settings) -> None:
        """Return when a turn can begin: what is to be said of them cannot come in the middle of a sentence."""
        await self.begun()
        if settings.mcp_servers:
            await self._start(settings)

    async def _start(self, settings: Settings) -> None:
        for failure in await self._tools.start_servers(settings):
            server = failure.partition(" failed to start: ")[0]
            if server not in self._told:
                self._told.add(server)
                await self._append(ErrorEvent(message=replace_surrogates(failure), code=TOOL_SERVER_FAILED))
