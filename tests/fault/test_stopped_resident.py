"""A resident server that was stopped with SIGSTOP: commands name its process, and signals end the commands."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from kit.servers.resident_process import ResidentProcess, outcome_of, parley, start_parley
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.testing import ScriptedModel

pytestmark = pytest.mark.waits


@pytest_asyncio.fixture
async def stopped(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[ResidentProcess]:
    async with ResidentProcess(parley_model, tmp_path / "home") as resident:
        resident.process.send_signal(signal.SIGSTOP)
        yield resident
        resident.process.send_signal(signal.SIGCONT)


@pytest.mark.promises("resident.hangs")
async def test_every_command_names_the_stopped_process(stopped: ResidentProcess) -> None:
    commands = ("mcp",), ("ls",), ("serve", "--status"), ("serve",)
    done = await asyncio.gather(*(parley(*command, env=stopped.environ) for command in commands))

    named = f"process {stopped.process.pid} ("
    assert [(code, named in errors) for code, _, errors in done] == [(0, True), (0, True), (1, True), (4, True)]


@pytest.mark.promises("resident.one", "resident.hangs")
async def test_a_stopped_process_without_its_lock_file_is_not_replaced(
    stopped: ResidentProcess, tmp_path: Path
) -> None:
    (tmp_path / "home/serve.lock").unlink()
    code, _, errors = await parley("serve", env=stopped.environ)

    assert (code, f"process {stopped.process.pid}" in errors) == (4, True)


@pytest.mark.promises("resident.hangs")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
@pytest.mark.fresh_process
async def test_a_signal_ends_a_relay_that_waits_for_the_stopped_process(
    stopped: ResidentProcess, number: signal.Signals
) -> None:
    code, errors = await _signalled(stopped, number)
    # On a slow computer, the signal may come after the relay has given up.
    while "this process serves the client" in errors:
        code, errors = await _signalled(stopped, number)

    assert code in (-number, 128 + number)


async def _signalled(resident: ResidentProcess, number: signal.Signals) -> tuple[int | None, str]:
    """Start a relay, signal it while it waits for the resident server, and return its exit code and its errors."""
    relay = await start_parley("mcp", env=resident.environ)
    await until(lambda: _has_socket(relay.pid))
    relay.send_signal(number)
    code, _, errors = await outcome_of(relay)
    return code, errors


def _has_socket(pid: int) -> bool:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # the relay has closed the pipe in the meantime
            if os.readlink(f"{folder}/{name}").startswith("socket:"):
                return True
    return False


@pytest.mark.promises("resident.hangs")
async def test_another_program_that_holds_the_lock_is_named(stopped: ResidentProcess, tmp_path: Path) -> None:
    home = tmp_path / "other"
    home.mkdir()
    holder = subprocess.Popen(  # noqa: ASYNC220 - ends with its stdin
        ["flock", str(home / "serve.lock"), "sh", "-c", "echo; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    env = {**stopped.environ, "PARLEY_HOME": str(home)}
    done = await asyncio.gather(parley("serve", "--status", env=env), parley("serve", env=env))
    await asyncio.to_thread(holder.communicate, b"\n", TIMEOUT_SECONDS)

    assert [f"process {holder.pid} (flock" in errors for _, _, errors in done] == [True, True]
