from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kit.servers.peers import Peer, StartPeer
from parley.peers import UnixPeers
from parley.transports.unix import Connection


@pytest.fixture
def home() -> Iterator[Path]:
    """Return a home with a short path, because tests create sockets in it."""
    with tempfile.TemporaryDirectory() as home:
        yield Path(home)


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    """Check that no task and no descriptor is left after each test."""
    tasks, descriptors = asyncio.all_tasks(), set(os.listdir("/proc/self/fd"))
    yield
    assert asyncio.all_tasks() <= tasks | {asyncio.current_task()}
    assert set(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture
async def start(home: Path, _nothing_is_left: None) -> AsyncIterator[StartPeer]:
    async with AsyncExitStack() as running:

        async def start(*, most_files: int = 0) -> Peer:
            peer = Peer()
            running.push_async_callback(peer.close)
            await peer.start(home, most_files)
            return peer

        yield start


@pytest.fixture
async def peers(home: Path, _nothing_is_left: None) -> AsyncIterator[UnixPeers]:
    """Return the peers of this process. The process reads connections of other processes and does not answer."""
    peers = UnixPeers(str(home), _ignore)
    yield peers
    await peers.close()


async def _ignore(connection: Connection) -> None:
    await connection.read(lambda frame: None)
