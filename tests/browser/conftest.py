"""Chromium, and a server with a scripted model. One browser serves all tests that a worker runs in sequence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser

from kit.clients.page import chromium
from kit.servers.http_server import HttpServer
from parley.testing import ScriptedModel

ASKING = 'approval_policy = "untrusted"\nsandbox_mode = "workspace-write"\nshow_raw_agent_reasoning = true\n'


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as model:
        yield model


@pytest_asyncio.fixture(loop_scope="session")
async def server(model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    """A server whose agent asks before commands and patches."""
    async with HttpServer(model, tmp_path / "home", config=ASKING) as server:
        yield server
