"""The fork server and the spare supervisor: what commands inherit from them, and how they end."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import select
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from kit.clients.codex_calls import Output, history, speaking
from kit.clients.shell_turns import ran as expected_output
from kit.clients.shell_turns import sh, turn
from kit.servers.tool_servers import program
from kit.system.commands import PYTHON, TIMEOUT_SECONDS, Ran, marked, ran, start_of
from parley.errors import CommandNotStarted
from parley.ports.commands import CommandResult
from parley.testing import ScriptedModel
from parley.tools.commands.executor import Executor
from parley.wire.events import OutputStream

FIND: Final = """
import os, time
def state_parent_session(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3])
def waits(pid):
    try: state, _, session = state_parent_session(pid)
    except OSError: return False  # the process has ended
    return state not in "ZX" and session == fork_server  # a supervisor with a command has its own session
def found():
    children = open(f"/proc/{fork_server}/task/{fork_server}/children").read().split()
    return [int(pid) for pid in children if waits(pid)]
supervisor = os.getppid()
_, fork_server, _ = state_parent_session(supervisor)
while len(spares := found()) != 1: time.sleep(0.001)  # it is forked while this command starts
(spare,) = spares
"""
"""The beginning of a Python program that finds its supervisor, the fork server and the spare supervisor."""

pytestmark = pytest.mark.fresh_process


def ignored(stream: OutputStream, data: bytes) -> None:
    pass


# --- what commands inherit -----------------------------------------------------------------


async def test_the_control_socket_and_the_pipes_of_a_command_are_not_held_by_the_spare_supervisor(
    executor: Executor,
) -> None:
    look = """
ours = {os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)}
def held(pid): return {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
def sockets(pid): return {name for name in held(pid) if name.startswith("socket:")}
for _ in range(9000):  # the spare supervisor closes what it inherits after its fork
    if not sockets(supervisor) & sockets(spare): break
    time.sleep(0.01)
print([len(ours & held(pid)) for pid in (fork_server, supervisor, spare)])
print(len(sockets(supervisor) & sockets(fork_server)), len(sockets(supervisor) & sockets(spare)))
"""
    looks = [await ran(executor, *PYTHON, FIND + look) for _ in range(2)]

    assert looks == [Ran(exit_code=0, stdout=b"[0, 0, 0]\n1 0\n")] * 2


async def test_the_server_may_open_many_files_and_programs_as_many_as_without_it(
    parley_model: ScriptedModel, marker: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = program("near", mark=marker)
    config = f'[mcp_servers.near]\ncommand = "{server.command}"\nargs = {list(server.args)}\n'
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        async with speaking(parley_model, config=config) as wire:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            seen = await turn(wire, sh("c1", "ulimit -Sn; ulimit -Hn"))
            (near,) = marked(marker)
            found = [open_files(wire.raw.pid), open_files(near)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert seen.asked[-1:] == history("chat", Output("c1", expected_output(f"300\n{hard}\n")))
    assert found == [(hard, hard), (300, hard)]


def open_files(pid: int) -> tuple[int, int]:
    found = re.search(r"^Max open files +(\d+) +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]), int(found[2])


# --- starts --------------------------------------------------------------------------------

CANNOT_FORK: Final = """
import errno, os, sys
def refuse(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = refuse
del sys.argv[1:4]  # the options, before the program to run and its arguments
exec(sys.argv.pop(1))
"""


def script(folder: Path, line: str) -> Path:
    """Return a program that executes another one."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\nexec {line}\n")
    program.chmod(0o755)
    return program


async def test_a_fork_server_that_cannot_fork_says_why(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program").write_text(CANNOT_FORK)
    monkeypatch.setattr(sys, "executable", str(script(tmp_path, f'{sys.executable} {tmp_path}/program "$@"')))

    with pytest.raises(CommandNotStarted) as caught:
        await ran(executor, "true")

    assert caught.value.detail == (
        "Resource temporarily unavailable (os error 11): no more processes or threads can be started "
        "(RLIMIT_NPROC, pids.max of the control group)"
    )


async def test_the_start_of_the_fork_server_is_no_time_of_the_command(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = script(tmp_path, f'sh -c \'sleep 1; exec {sys.executable} "$@"\' sh "$@"')
    monkeypatch.setattr(sys, "executable", str(late))
    began = time.monotonic()
    ended = await executor.start(start_of("sleep", "0.1"), output=ignored)
    whole = time.monotonic() - began

    assert ended == CommandResult(exit_code=0, seconds=ended.seconds)
    assert 0.1 <= ended.seconds <= whole - 1


async def test_a_command_runs_after_the_spare_supervisor_was_killed(executor: Executor) -> None:
    killed = await ran(executor, *PYTHON, f"{FIND}\nos.kill(spare, 9)")
    after = await asyncio.gather(*(ran(executor, "echo", "hi") for _ in range(3)))

    assert (killed, after) == (Ran(exit_code=0), [Ran(exit_code=0, stdout=b"hi\n")] * 3)


# --- ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["in order", "killed"])
async def test_the_spare_supervisor_ends_with_the_fork_server(executor: Executor, ending: str) -> None:
    found = await ran(executor, *PYTHON, f"{FIND}\nprint(fork_server, spare)")
    fork_server, spare = map(int, found.stdout.split())
    descriptor = os.pidfd_open(spare)
    try:
        if ending == "killed":
            os.kill(fork_server, 9)
        else:
            await executor.close()
        ended, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], TIMEOUT_SECONDS)
    finally:
        os.close(descriptor)

    assert ended == [descriptor]
