"""A program that passes a descriptor over a socket to the test, which keeps it open."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kit.system.commands import TIMEOUT_SECONDS, Ran

__all__ = ["passed_descriptor"]


@asynccontextmanager
async def passed_descriptor(
    place: Path, run: Callable[[str], Coroutine[Any, Any, Ran]]
) -> AsyncIterator[asyncio.Task[Ran]]:
    """Run a program that connects to the socket at this path and sends a descriptor; the block holds the
    descriptor."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        listener.setblocking(False)
        task = asyncio.create_task(run(str(place)))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    with connection:
        connection.settimeout(TIMEOUT_SECONDS)
        _, [held], _, _ = await asyncio.to_thread(socket.recv_fds, connection, 1, 1)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            yield task
    finally:
        os.close(held)
