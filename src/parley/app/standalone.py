"""Functions that need no running server: they run one sandboxed command, and report on the sandbox, the home
directory and the API key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
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

__all__ = ["exposed_files", "has_price", "run_confined", "sandbox_report", "why_no_conversations", "why_no_key"]

TIMEOUT_SECONDS: Final = 7 * 24 * 3600.0
"""The timeout, in seconds, for a command that the user runs. The timeout is very long because the user can end the
command at any time.
"""
CHECK_SECONDS: Final = 20.0
"""The timeout, in seconds, for the command that prints its control group. The command exits at once, but the
computer may be busy.
"""


async def run_confined(settings: Settings, argv: Sequence[str], *, output: Output) -> CommandResult:
    """Run one command as the agent would run it under the given settings, but with the timeout `TIMEOUT_SECONDS`,
    and return its result. `output` is called with each piece of the command's output.

    Raises:
        CommandNotStarted: the program does not exist, or the operating system could not start it.
        SandboxUnavailable: the command cannot be confined. The command was not run.
    """
    policy = policy_for(settings, Roots())
    if policy is None:
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
        timeout_seconds=TIMEOUT_SECONDS,
        policy=policy,
    )
    commands = sandboxed_commands(lambda: settings.home)
    try:
        return await commands.run(command, output=output)
    finally:
        await commands.close()


async def sandbox_report(settings: Settings | None) -> tuple[Report, str]:
    """Return a report about the sandbox that the given settings select, and a description of the limits on memory
    and processes that all commands share.

    If `settings` is None, the report is about the sandboxes that the system supports.

    Raises:
        CommandNotStarted: no command can be started.
    """
    commands = sandboxed_commands(lambda: None if settings is None else settings.home)
    try:
        report = await commands.report(SandboxPolicy() if settings is None else read_only(settings))
        return report, await _limits(commands)
    finally:
        await commands.close()


async def _limits(commands: Sandboxed) -> str:
    """Return a description of the limits on memory and processes that all commands share. If there are no such
    limits, the description gives the reason.
    """
    why = scope.why_none("/")
    if why is None:
        printed = bytearray()
        show = Command(argv=("cat", "/proc/self/cgroup"), cwd="/", env={}, timeout_seconds=CHECK_SECONDS)
        await commands.run(show, output=lambda _, data: printed.extend(data))
        limits = scope.limits_in(printed.decode(errors="replace").strip().removeprefix("0::"))
        if limits is not None:
            memory, tasks = limits
            return f"{memory / 2**30:.1f} GiB of memory and {tasks} processes for all commands together, by systemd"
        why = "systemd was asked for a scope and did not create it"
    return f"none for all commands together: {why}"


def why_no_conversations(home: str) -> str | None:
    """Return the reason why the conversations of a home directory cannot be used.

    Return None if the conversations can be used, or if there are no conversations.
    """
    from parley.stores.sqlite.errors import REPAIR
    from parley.stores.sqlite.maintenance import find_damage
    from parley.stores.sqlite.read_only import check_database

    try:
        check_database(home)
        damage = find_damage(home)
    except (BadHome, StoreFailed) as refusal:
        return refusal.detail
    return None if damage is None else f"the database is damaged ({damage}). {REPAIR}"


def exposed_files(home: str) -> Iterator[str]:
    """Yield a sentence for each path with unsafe permissions. The checked paths are the home directory and its
    files with settings, keys and conversations.

    Permissions are unsafe if another user can change a path, or can read a file that contains secrets or
    conversations.
    """
    for name, private in (
        ("", False),
        ("config.toml", False),
        ("auth.json", True),
        ("serve.key", True),
        ("parley.db", True),
    ):
        path = os.path.join(home, name) if name else home
        with suppress(OSError):
            status = os.stat(path)
            if status.st_uid not in (os.geteuid(), 0):
                yield f"{path} belongs to another user, who can change it"
            elif status.st_mode & 0o022:
                yield f"other users can change {path}; correct it with `chmod go-w`"
            elif private and status.st_mode & 0o044 and not _is_closed(home):
                yield f"other users can read {path}; correct it with `chmod go-r`"


def _is_closed(directory: str) -> bool:
    return not os.stat(directory).st_mode & 0o011


def has_price(settings: Settings) -> bool:
    """Return whether the price of the model in the settings is known."""
    from parley.agent.cost import price_of

    return price_of(settings) is not None


def why_no_key(settings: Settings) -> str | None:
    """Return the reason why there is no API key for the model; None if no key is missing.

    The reason never contains a part of a key.
    """
    from parley.models.credentials import credentials

    try:
        credentials(settings)
    except MissingVariable as missing:
        return str(missing)
    return None
