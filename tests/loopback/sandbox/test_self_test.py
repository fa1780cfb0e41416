"""The self-test of a mechanism: a mechanism that allows a forbidden operation is not used, and the operation is
named."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from kit.builders.sandbox_policies import root, sandbox_policy
from kit.system.confined_commands import confined
from kit.system.needs import LANDLOCK, SANDBOX
from parley.errors import SandboxUnavailable
from parley.ports.commands import Command, CommandResult, LaunchSpec, Output, SandboxPolicy
from parley.sandbox import Sandboxed
from parley.sandbox.self_test import run_self_test
from parley.tools.commands.executor import Executor


class Leaky:
    """A mechanism that enforces another policy than the given one."""

    def __init__(self, sandboxed: Sandboxed, changed: Callable[[SandboxPolicy], SandboxPolicy | None]) -> None:
        self._sandboxed, self._changed = sandboxed, changed

    async def run(self, command: Command, policy: SandboxPolicy, *, output: Output) -> CommandResult:
        return await self._sandboxed.run(replace(command, policy=self._changed(policy)), output=output)


def wider(within: SandboxPolicy) -> SandboxPolicy:
    return replace(within, writable=(root(Path(within.writable[0].path).parent),))


async def test_a_mechanism_that_confines_nothing_is_found_out(sandboxed: Sandboxed) -> None:
    unconfining = Leaky(sandboxed, lambda within: None)

    assert await run_self_test(unconfining) == "a command could still write outside of its writable directory"


@SANDBOX
async def test_a_mechanism_that_passes_the_self_test_is_used(sandboxed: Sandboxed) -> None:
    assert await run_self_test(Leaky(sandboxed, lambda within: within)) is None


@SANDBOX
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (wider, "a command could still write outside of its writable directory"),
        (lambda within: replace(within, hidden=()), "a command could still read a hidden file"),
        (lambda within: replace(within, network=True), "a command could still use the network"),
    ],
    ids=["writing outside", "hidden", "network"],
)
async def test_a_mechanism_that_leaves_one_thing_open_is_found_out(
    sandboxed: Sandboxed, changed: Callable[[SandboxPolicy], SandboxPolicy], why: str
) -> None:
    assert await run_self_test(Leaky(sandboxed, changed)) == why


@SANDBOX
async def test_a_mechanism_that_lets_nothing_be_written_where_it_may_is_of_no_use(sandboxed: Sandboxed) -> None:
    why = await run_self_test(Leaky(sandboxed, lambda within: replace(within, writable=())))

    assert why is not None
    assert re.fullmatch(r"(PermissionError|OSError): .*/inside/made'", why)


class UnrestrictedStarter:
    """A starter that ignores restrictions."""

    def __init__(self) -> None:
        self._executor = Executor()

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        return await self._executor.start(replace(start, restriction=None), output=output)

    async def close(self) -> None:
        await self._executor.close()


@LANDLOCK
@pytest.mark.promises("sandbox.closed")
async def test_a_restriction_that_takes_no_effect_lets_nothing_run(tmp_path: Path) -> None:
    sandboxed = Sandboxed(UnrestrictedStarter)
    try:
        with pytest.raises(SandboxUnavailable) as refused:
            await confined(sandboxed, sandbox_policy(mechanism="landlock"), "touch", f"{tmp_path}/new")
    finally:
        await sandboxed.close()

    assert refused.value.detail == (
        "no sandbox is available on this system: "
        "Landlock: a command could still write outside of its writable directory"
    )
    assert os.listdir(tmp_path) == []


@SANDBOX
async def test_directories_of_killed_self_tests_are_removed(sandboxed: Sandboxed, tmp_path: Path) -> None:
    abandoned, recent = tmp_path / "self-test-abandoned", tmp_path / "self-test-recent"
    for directory in (abandoned, recent):
        (directory / "inside").mkdir(parents=True)
    os.utime(abandoned, (0, 0))
    await run_self_test(Leaky(sandboxed, lambda within: within), home=str(tmp_path))

    assert os.listdir(tmp_path) == ["self-test-recent"]
