"""Work without a server: run one sandboxed command, and report on the sandbox, the home and the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.agent.sandbox_policy import Roots, policy_for, read_only
from parley.app.commands import sandboxed_commands
from parley.config.types import Settings
from parley.errors import BadHome, SandboxUnavailable, StoreFailed
from parley.models.errors import MissingVariable
from parley.ports.commands import Command, CommandResult, Output, SandboxPolicy
from parley.sandbox import Report, Sandboxed
from parley.tools.commands import scope
from parley.tools.commands.environment import command_environment

__all__ = ["run_confined", "sandbox_report", "why_no_conversations", "why_no_key"]

BY_HAND_SECONDS: Final = 7 * 24 * 3600.0
"""Practically no timeout: the user can end the command at any time."""
LOOK_SECONDS: Final = 20.0
"""Timeout of a trivial command on a busy computer."""


async def run_confined(settings: Settings, argv: Sequence[str], *, output: Output) -> CommandResult:
    """Run one command like the agent's commands under these settings, without a timeout.

    Raises:
        CommandNotStarted: the program does not exist, or the system refused to start it.
        SandboxUnavailable: the command cannot be confined; it was not run.
    """
    bounds = policy_for(settings, Roots())
    if bounds is None:
        raise SandboxUnavailable(f"{settings.sandbox_mode} does not confine commands")
    command = Command(
        argv=tuple(argv),
        cwd=settings.cwd,
        env=command_environment(
            settings.environ,
            settings.shell_environment,
            network=settings.network_access,
            keys=settings.key_variables,
        ),
        timeout_seconds=BY_HAND_SECONDS,
        bounds=bounds,
    )
    commands = sandboxed_commands(lambda: settings.home)
    try:
        return await commands.run(command, output=output)
    finally:
        await commands.close()


async def sandbox_report(settings: Settings | None) -> tuple[Report, str]:
    """Describe the sandbox of these settings and the limits of all commands together; without settings, the
    sandboxes that the system supports.

    Raises:
        CommandNotStarted: no command can be started at all.
    """
    commands = sandboxed_commands(lambda: None if settings is None else settings.home)
    try:
        report = await commands.report(SandboxPolicy() if settings is None else read_only(settings))
        return report, await _limits(commands)
    finally:
        await commands.close()


async def _limits(commands: Sandboxed) -> str:
    """Describe the limits of all commands together."""
    why = scope.why_none("/")
    if why is None:
        said = bytearray()
        look = Command(argv=("cat", "/proc/self/cgroup"), cwd="/", env={}, timeout_seconds=LOOK_SECONDS)
        await commands.run(look, output=lambda _, data: said.extend(data))
        limits = scope.limits_in(said.decode(errors="replace").strip().removeprefix("0::"))
        if limits is not None:
            memory, tasks = limits
            return f"{memory / 2**30:.1f} GiB of memory and {tasks} processes for all commands together, by systemd"
        why = "systemd was asked for a scope and did not create it"
    return f"none for all commands together: {why}"


def why_no_conversations(home: str) -> str | None:
    """Return why the conversations of a home cannot be used; None: they can, or there are none."""
    from parley.stores.sqlite.errors import REPAIR
    from parley.stores.sqlite.maintenance import find_damage
    from parley.stores.sqlite.read_only import look_at_database

    try:
        look_at_database(home)
        damage = find_damage(home)
    except (BadHome, StoreFailed) as refusal:
        return refusal.detail
    return None if damage is None else f"the database is damaged ({damage}). {REPAIR}"


def why_no_key(settings: Settings) -> str | None:
    """Return which key the model of these settings lacks; None if it lacks none. The text never contains a part of
    a key.
    """
    from parley.models.credentials import credentials

    try:
        credentials(settings)
    except MissingVariable as missing:
        return str(missing)
    return None
