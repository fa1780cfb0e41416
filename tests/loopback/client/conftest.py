from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from parley.client import Client, ServerProcess, connect

PEER = Path(__file__).with_name("peer.py")


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    """Check that no task of a client is left after each test."""
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


@pytest.fixture
def peer() -> Callable[..., AbstractAsyncContextManager[Client]]:
    """Return a function that connects to a peer with the given script. It accepts the options of `connect`."""

    def start(script: dict[str, Any], **options: Any) -> AbstractAsyncContextManager[Client]:
        return connect(ServerProcess((sys.executable, "-S", str(PEER), json.dumps(script))), **options)

    return start
