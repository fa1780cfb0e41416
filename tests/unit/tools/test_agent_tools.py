"""The tools of the process. Each environment has a pool of tool servers, which exists while a turn uses it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping
from typing import Any

from kit.models.raw_provider import settings
from kit.system.commands import TIMEOUT_SECONDS
from parley.config.types import Settings, ToolServer
from parley.tools import AgentTools
from parley.tools.servers.server import Timing


class Marked(dict[str, str]):
    """An environment that the test can refer to weakly."""


def settings_of(environ: Mapping[str, str]) -> Settings:
    return settings(environ=environ, mcp_servers=(ToolServer(name="broken", command="/no/such/program"),))


async def test_an_environment_is_forgotten_when_its_tool_servers_are_idle() -> None:
    commands: Any = None
    tools = AgentTools(commands=commands, timing=Timing(idle_seconds=0))
    environments = [Marked(KEY=f"secret {number}") for number in range(3)]
    watched = [weakref.ref(environ) for environ in environments]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for environ in environments:
            ((name, failure),) = await tools.start_servers(settings_of(environ))
            assert name == "broken"
            assert "No such file" in failure
        del environments, environ
        while any(one() is not None for one in watched):
            gc.collect()
            await asyncio.sleep(0.01)
        await tools.close()
