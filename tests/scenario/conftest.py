from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.shared_home import Start
from kit.system.commands import PATIENCE_SECONDS
from parley.testing import ParleyProcess, ScriptedModel


@pytest.fixture(autouse=True)
def _in_process(servers_in_process: None) -> None:
    """Run scenarios in the process of the test, except marked ones."""


@pytest_asyncio.fixture
async def start(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts processes on one home."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> ParleyProcess:
            given = {"home": tmp_path / "home", **options}
            return await stack.enter_async_context(ParleyProcess(parley_model, **given))

        async with asyncio.timeout(PATIENCE_SECONDS):
            yield make
