"""The tools that the model can call. Each tool has its own module.

Importing this package is fast, because the modules of the tools are imported only when the first turn with tools
begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from parley.common.telemetry import Operation, telemetry
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
    from parley.tools.servers.server import Timing
    from parley.tools.tool import Tool

__all__ = ["AgentTools", "OpenTools", "own_tools"]

log = logging.getLogger(__name__)


class AgentTools:
    """The tools of this process, including the tools of tool servers. The method `close` ends the tool servers, but
    does not close the command runner `commands`.
    """

    def __init__(self, *, commands: CommandRunner, timing: Timing | None = None) -> None:
        self._commands, self._timing = commands, timing
        self._pools: dict[frozenset[tuple[str, str]], ServerPool] = {}
        """The pools of tool servers, keyed by the environment variables of their servers."""
        self._closing: set[asyncio.Task[None]] = set()

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

    async def start_servers(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        if not settings.mcp_servers:
            return ()
        return await self._pool(settings).start(settings.mcp_servers)

    async def close(self) -> None:
        for environ in tuple(self._pools):
            self._drop(environ)
        if self._closing:
            await asyncio.wait(self._closing)

    def _pool(self, settings: Settings) -> ServerPool:
        from parley.config.search_path import environ_of_programs
        from parley.tools.servers.pool import ServerPool
        from parley.tools.servers.server import Timing

        variables = environ_of_programs(settings)
        environ = frozenset(variables.items())
        if environ not in self._pools:
            self._pools[environ] = ServerPool(
                variables, timing=self._timing or Timing(), on_unused=lambda: self._drop(environ)
            )
        return self._pools[environ]

    def _drop(self, environ: frozenset[tuple[str, str]]) -> None:
        """End the tool servers that run with the environment `environ`, and remove their pool. This method is the
        `on_unused` callback of the pool.
        """
        if (pool := self._pools.pop(environ, None)) is not None:
            closing = asyncio.create_task(pool.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def own_tools(context: ToolContext, commands: CommandRunner) -> tuple[Tool, ...]:
    """Return Parley's own tools, in the order in which they are listed to the model. Tools of tool servers are not
    included.
    """
    from parley.tools.apply_patch import Patches
    from parley.tools.shell import Shell
    from parley.tools.update_plan import UpdatePlan
    from parley.tools.view_image import ViewImage

    patches = Patches(context, commands)
    return Shell(context, commands, patches), patches, UpdatePlan(context), ViewImage(context)


class OpenTools:
    """The tools of one turn: Parley's own tools, and the tools of tool servers."""

    def __init__(self, own: tuple[Tool, ...], servers: ServerTools | None) -> None:
        self._own, self._servers = own, servers
        self._by_name = {name: tool for tool in own for name in tool.names}

    def specs(self) -> tuple[ToolSpec, ...]:
        own = tuple(spec for tool in self._own if (spec := tool.spec()) is not None)
        return own if self._servers is None else own + self._servers.specs()

    async def run(self, call: CallItem) -> str:
        is_own = call.name in self._by_name
        is_known = is_own or (self._servers is not None and self._servers.handles(call.name))
        # names that the model invents are reported as `unknown`, because their number is not limited
        name = call.name if is_known else "unknown"
        with telemetry.operation("tool_call", tool=name, call_id=call.call_id) as operation:
            if operation is not None and telemetry.wants_content:
                operation.content["arguments"] = call.arguments
            output = await self._run(call, operation)
            if operation is not None and telemetry.wants_content:
                operation.content["output"] = output
            return output

    async def _run(self, call: CallItem, operation: Operation | None) -> str:
        try:
            if (tool := self._by_name.get(call.name)) is not None:
                return await tool.run(call)
            if self._servers is not None and self._servers.handles(call.name):
                return await self._servers.run(call)
        except ToolError as error:
            _note_failure(operation, error)
            return str(error)
        except StoreError:
            raise  # the effects of the tool cannot be stored, so the turn must end
        except Exception as bug:
            _note_failure(operation, bug)
            log.exception("the tool %s failed", call.name)
            return internal_error(bug)
        if operation is not None:
            operation.outcome = "unknown_tool"
        return f"unsupported call: {call.name}"


def _note_failure(operation: Operation | None, error: Exception) -> None:
    if operation is not None:
        operation.outcome = "failed"
        operation.add(error=type(error).__name__)
