"""Runs sandboxed commands in this process."""

from __future__ import annotations

from collections.abc import Mapping

from kit.system.commands import PATH, TIMEOUT_SECONDS, Ran, captured
from parley.ports.commands import Command, CommandRunner, SandboxPolicy

__all__ = ["confined"]


async def confined(
    commands: CommandRunner,
    policy: SandboxPolicy | None,
    *argv: str,
    cwd: object = "/",
    env: Mapping[str, str] | None = None,
    files: tuple[bytes, ...] = (),
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Ran:
    """Run a command and return all its output."""
    command = Command(
        argv=argv,
        cwd=str(cwd),
        env={"PATH": PATH} if env is None else env,
        timeout_seconds=timeout_seconds,
        policy=policy,
        files=files,
    )
    return await captured(lambda output: commands.run(command, output=output))
