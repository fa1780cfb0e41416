from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.shared_home import Start
from kit.servers.resident_process import ResidentProcess
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import ParleyProcess, ScriptedModel


@pytest.fixture(autouse=True)
def _in_process(servers_in_process: None) -> None:
    """Run scenarios in the process of the test, except marked ones."""


@pytest_asyncio.fixture
async def start(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[Start]:
    """Return a function that starts processes on one home."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> ParleyProcess:
            given = {"home": tmp_path / "home", **options}
            return await stack.enter_async_context(ParleyProcess(parley_model, **given))

        async with asyncio.timeout(TIMEOUT_SECONDS):
            yield make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, home: Path) -> AsyncIterator[ResidentProcess]:
    """Yield a resident server with the most detailed log."""
    async with ResidentProcess(parley_model, home, env={"PARLEY_LOG": "debug"}) as server:
        yield server
