"""The tools that the model can call, one module for each.

Importing this package is cheap: the first turn that has tools imports the modules of the tools.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from parley.errors import StoreError, ToolError
from parley.tools.results import internal_error

if TYPE_CHECKING:
    from parley.config.types import Settings
    from parley.conversation.records import CallItem
    from parley.ports.commands import CommandRunner
    from parley.ports.model import ToolSpec
    from parley.ports.tools import ToolContext, TurnTools
    from parley.tools.servers.calls import ServerTools
    from parley.tools.servers.pool import ServerPool
    from parley.tools.tool import Tool

__all__ = ["AgentTools", "OpenTools", "own_tools"]

log = logging.getLogger(__name__)


class AgentTools:
    """All tools of this process. Does not close `commands`."""

    def __init__(self, *, commands: CommandRunner) -> None:
        self._commands = commands
        self._pools: dict[frozenset[tuple[str, str]], ServerPool] = {}
        """The tool servers, by the environment that they run with."""

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[TurnTools]:
        async with AsyncExitStack() as stack:
            servers: ServerTools | None = None
            if context.settings.mcp_servers:
                from parley.tools.servers.calls import ServerTools

                lease = await stack.enter_async_context(
                    self._pool(context.settings).lease(context.settings.mcp_servers)
                )
                servers = ServerTools(context, lease)
            yield OpenTools(own_tools(context, self._commands), servers)

    async def start_servers(self, settings: Settings) -> tuple[str, ...]:
        if not settings.mcp_servers:
            return ()
        return await self._pool(settings).start(settings.mcp_servers)

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()

    def _pool(self, settings: Settings) -> ServerPool:
        from parley.tools.servers.pool import ServerPool

        environ = frozenset(settings.environ.items())
        if environ not in self._pools:
            self._pools[environ] = ServerPool(settings.environ)
        return self._pools[environ]


def own_tools(context: ToolContext, commands: CommandRunner) -> tuple[Tool, ...]:
    """Return Parley's own tools, without the tools of tool servers, in the order in which they are offered."""
    from parley.tools.apply_patch import Patches
    from parley.tools.shell import Shell
    from parley.tools.update_plan import UpdatePlan
    from parley.tools.view_image import ViewImage

    patches = Patches(context, commands)
    return Shell(context, commands, patches), patches, UpdatePlan(context), ViewImage(context)


class OpenTools:
    """The tools of one turn."""

    def __init__(self, own: tuple[Tool, ...], servers: ServerTools | None) -> None:
        self._own, self._servers = own, servers
        self._by_name = {name: tool for tool in own for name in tool.names}

    def specs(self) -> tuple[ToolSpec, ...]:
        own = tuple(spec for tool in self._own if (spec := tool.spec()) is not None)
        return own if self._servers is None else own + self._servers.specs()

    async def run(self, call: CallItem) -> str:
        try:
            if (tool := self._by_name.get(call.name)) is not None:
                return await tool.run(call)
            if self._servers is not None and self._servers.handles(call.name):
                return await self._servers.run(call)
        except ToolError as error:
            return str(error)
        except StoreError:
            raise  # what the tool did cannot be stored, so the turn must not go on
        except Exception as bug:
            log.exception("the tool %s failed", call.name)
            return internal_error(bug)
        return f"unsupported call: {call.name}"
