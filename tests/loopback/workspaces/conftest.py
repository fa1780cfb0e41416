from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.servers.git_nodes import Origin
from kit.servers.worktree_node import WorktreeNode
from kit.system.commands import TIMEOUT_SECONDS
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor


@pytest.fixture
async def sandboxed() -> AsyncIterator[Sandboxed]:
    """Yield a runner of sandboxed commands, which is closed after the test."""
    sandboxed = Sandboxed(Executor)
    yield sandboxed
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await sandboxed.close()


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path)


@pytest.fixture
def node(sandboxed: Sandboxed, tmp_path: Path, origin: Origin) -> WorktreeNode:
    return WorktreeNode(sandboxed, tmp_path, str(origin.path))
