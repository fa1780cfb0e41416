"""A scripted model in a separate process, so that the model does not compete for a core with the code that a
benchmark measures.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parley.client import ServerProcess
from parley.testing.model import TIMEOUT_SECONDS

__all__ = ["model_process"]


@asynccontextmanager
async def model_process(*, deltas: int | None = None, text: str | None = None, port: int = 0) -> AsyncIterator[str]:
    """Start a model that gives the same reply to every request, and yield its base URL.

    The reply is `text`, repeated `deltas` times; without `deltas`, `text` is sent once. The model listens on
    `port`; 0 means a free port. The model process exits at the end of the `async with` block, or when this process
    dies.
    """
    base_url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def receive(line: bytes) -> None:
        if not base_url.done():
            base_url.set_result(line.decode())

    def end(_: int | None) -> None:
        if not base_url.done():
            base_url.set_exception(RuntimeError("the model process ended before it printed its base URL"))

    options = ["--port", str(port), "--until-stdin-closes"]
    if deltas is not None:
        options += ["--deltas", str(deltas)]
    if text is not None:
        options += ["--text", text]
    process = ServerProcess((sys.executable, "-m", "parley.testing", *options))
    await process.start(on_message=receive, on_end=end)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await base_url
        yield base_url.result()
    finally:
        await process.close()
