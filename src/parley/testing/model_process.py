"""A scripted model in a process of its own, so that it does not share a processor with what is measured."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parley.client.child import Child
from parley.testing.model import PATIENCE_SECONDS

__all__ = ["model_process"]


@asynccontextmanager
async def model_process(*, deltas: int | None = None, text: str | None = None, port: int = 0) -> AsyncIterator[str]:
    """The base URL of a model that answers every request alike: with `text`, or with it `deltas` times.

    Both APIs are served, as by every scripted model. The process ends with the block, and also
    when ours dies.
    """
    base_url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def told(line: bytes) -> None:
        if not base_url.done():
            base_url.set_result(line.decode())

    def ended() -> None:
        if not base_url.done():
            base_url.set_exception(RuntimeError("the model's process ended before it served"))

    options = ["--port", str(port), "--until-stdin-closes"]
    if deltas is not None:
        options += ["--deltas", str(deltas)]
    if text is not None:
        options += ["--text", text]
    child = await Child.start((sys.executable, "-m", "parley.testing", *options), on_line=told, on_end=ended)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await base_url
        yield base_url.result()
    finally:
        await child.close()
