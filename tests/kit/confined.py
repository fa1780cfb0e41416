"""Running commands within bounds, in this process."""

from __future__ import annotations

import asyncio

from kit.running import PATH, PATIENCE_SECONDS, Ran
from parley.ports.commands import Bounds, Command, Commands
from parley.wire.events import OutputStream

__all__ = ["confined"]


async def confined(
    commands: Commands,
    bounds: Bounds | None,
    *argv: str,
    cwd: object = "/",
    env: dict[str, str] | None = None,
    files: tuple[bytes, ...] = (),
    timeout_seconds: float = PATIENCE_SECONDS,
) -> Ran:
    """Run a command and keep all that it says."""
    said: dict[OutputStream, list[bytes]] = {"stdout": [], "stderr": []}
    command = Command(
        argv=argv,
        cwd=str(cwd),
        env={"PATH": PATH} if env is None else env,
        timeout_seconds=timeout_seconds,
        bounds=bounds,
        files=files,
    )
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        ended = await commands.run(command, output=lambda stream, data: said[stream].append(data))
    return Ran(
        exit_code=ended.exit_code,
        stdout=b"".join(said["stdout"]),
        stderr=b"".join(said["stderr"]),
        signal=ended.signal,
        timed_out=ended.timed_out,
    )
