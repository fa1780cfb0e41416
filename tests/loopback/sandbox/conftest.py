from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kit.system.commands import PATIENCE_SECONDS
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor


@pytest.fixture
async def sandboxed() -> AsyncIterator[Sandboxed]:
    """Runs commands, and has ended all of them when the test is over."""
    sandboxed = Sandboxed(Executor)
    yield sandboxed
    async with asyncio.timeout(PATIENCE_SECONDS):
        await sandboxed.close()
