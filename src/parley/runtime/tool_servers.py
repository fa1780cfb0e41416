"""Starts the tool servers of one conversation, and appends an event for each server that fails to start.

The tool servers belong to the process. This module tracks which failures are already in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from parley.config.types import Settings
from parley.errors import TOOL_SERVER_FAILED, StoreError
from parley.ports.tools import Tools
from parley.wire.events import ErrorEvent
from parley.wire.text import replace_surrogates

__all__ = ["ToolServers"]

log = logging.getLogger(__name__)

Append = Callable[[ErrorEvent], Awaitable[None]]


class ToolServers:
    """Starts the tool servers of one conversation when the conversation is created. Before each turn, waits until
    the tool servers have started.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._reported: set[str] = set()
        """The names of the tool servers whose failure to start is in the log. Each server gets only one event, even
        if the reason for its failure changes.
        """
        self._starting: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None
        """The task that stores the event for the last failure; None before the first failure."""

    def begin(self, settings: Settings, append: Append) -> None:
        """Start the tool servers of `settings` in the background. `append` appends the event for a server that
        fails to start. The event belongs to no turn.
        """
        if settings.mcp_servers:
            self._starting = asyncio.create_task(self._start_in_background(settings, append))

    @property
    def is_starting(self) -> bool:
        return self._starting is not None and not self._starting.done()

    async def begun(self) -> None:
        """Wait until each tool server that `begin` starts has started or failed, or until `stop_waiting` is called.
        Return immediately if `begin` has started no tool servers.
        """
        if self._starting is not None:
            await asyncio.wait({self._starting})

    def stop_waiting(self) -> None:
        """Make the calls of `begun` return immediately. The next call of `ready` appends the events for servers
        that fail to start.
        """
        if self._starting is not None:
            self._starting.cancel()

    async def ready(self, settings: Settings, append: Append) -> None:
        """Wait until the servers of `settings` have started or failed to start. `append` appends the event for a
        server that fails to start.

        The caller calls this method before a turn begins, so that no such event appears within a model response.
        """
        await self.begun()
        if settings.mcp_servers:
            await self._start(settings, append)

    async def _start_in_background(self, settings: Settings, append: Append) -> None:
        try:
            await self._start(settings, append)
        except StoreError as error:
            log.warning("the failure of a tool server is reported when the next turn begins: %s", error)

    async def _start(self, settings: Settings, append: Append) -> None:
        for name, failure in await self._tools.start_servers(settings):
            if name not in self._reported:
                # The report is stored completely even if this task is cancelled.
                self._reporting = asyncio.create_task(self._report(name, failure, append))
                await asyncio.shield(self._reporting)

    async def _report(self, name: str, failure: str, append: Append) -> None:
        await append(ErrorEvent(message=replace_surrogates(failure), code=TOOL_SERVER_FAILED))
        self._reported.add(name)
