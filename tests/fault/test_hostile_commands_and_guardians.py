"""Commands that stop, hamper or kill the processes that start commands and watch over them."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from kit.clients.codex_calls import Output, Wire, failed, history, is_event, speaking
from kit.clients.shell_turns import nothing_left_of, sh, turn, until_running
from kit.clients.shell_turns import ran as told
from kit.servers.tool_servers import program
from kit.system.commands import PATIENCE_SECONDS, PYTHON, Ran, marked, open_descriptors, out_of_time, ran, start_of
from parley.errors import CommandNotStarted
from parley.ports.commands import Ended
from parley.testing import ScriptedModel
from parley.tools.commands.executor import Executor
from parley.wire.events import OutputStream

FORK_SERVER: Final = "$(cut -d ' ' -f 4 /proc/$PPID/stat)"
"""In a script of the shell: the process above the one above it."""

IN_PYTHON: Final = "import os, resource; fork_server = int(open(f'/proc/{os.getppid()}/stat').read().split()[3])\n"
"""The same for a program in Python."""


def ignored(stream: OutputStream, data: bytes) -> None:
    pass


class Waiting:
    """A command that says that it runs, and then runs until it is told to end."""

    def __init__(self, executor: Executor, gate: Path) -> None:
        os.mkfifo(gate)
        self._gate = gate
        self._running = asyncio.Event()
        script = f"echo; read line < {gate}; exit 3"
        start = start_of("sh", "-c", script)
        self._task = asyncio.create_task(executor.start(start, output=lambda stream, data: self._running.set()))

    async def runs(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._running.wait()

    async def exit_code(self) -> int | None:
        """Let it end, if it is still there."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            if not self._task.done():
                await asyncio.to_thread(self._gate.write_text, "on\n")
            return (await self._task).exit_code


# --- stopped -----------------------------------------------------------------------------


async def test_commands_run_on_when_one_of_them_has_stopped_the_fork_server(executor: Executor) -> None:
    stopper = await ran(executor, "sh", "-c", f"kill -STOP {FORK_SERVER}")
    others = await asyncio.gather(*(ran(executor, "echo", "hi") for _ in range(20)))

    assert (stopper, others) == (Ran(exit_code=0), [Ran(exit_code=0, stdout=b"hi\n")] * 20)


@pytest.mark.parametrize("stopped", ["$PPID", FORK_SERVER, f"$PPID {FORK_SERVER}"], ids=["one", "other", "both"])
async def test_a_command_that_stops_who_watches_over_it_is_killed_in_time(
    executor: Executor, marker: str, stopped: str
) -> None:
    script = f"setsid sh -c 'sleep 1000; :' {marker} & kill -STOP {stopped}; echo out; sleep 1000"
    start = start_of("sh", "-c", script, marker, timeout_seconds=1000)
    said = asyncio.Event()
    task = asyncio.create_task(executor.start(start, output=lambda stream, data: said.set()))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await said.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert marked(marker) == []
    assert await ran(executor, "true") == Ran(exit_code=0)


async def test_a_command_that_stops_both_again_and_again_is_killed(executor: Executor, marker: str) -> None:
    stop = f"while :; do kill -STOP $PPID {FORK_SERVER}; done"
    script = f"setsid sh -c 'sleep 1000; :' {marker} & {stop}"

    result = await ran(executor, "sh", "-c", script, marker, timeout_seconds=0.3)

    # Its time may be over before it has found whom to stop.
    assert (result._replace(stderr=b""), marked(marker)) == (Ran(timed_out=True), [])
    assert await ran(executor, "true") == Ran(exit_code=0)


async def test_a_command_that_ended_behind_the_back_of_its_stopped_supervisor_has_ended(
    executor: Executor, marker: str
) -> None:
    script = f"setsid sh -c 'sleep 1000; :' {marker} & kill -STOP $PPID; echo out; exit 3"

    result = await out_of_time(executor, "sh", "-c", script, marker, says=b"out\n")

    assert (result, marked(marker)) == (Ran(exit_code=3, stdout=b"out\n"), [])
    assert await ran(executor, "true") == Ran(exit_code=0)


async def test_closing_ends_a_fork_server_that_was_stopped(executor: Executor) -> None:
    before = open_descriptors()
    stopped = await ran(executor, "sh", "-c", f"kill -STOP {FORK_SERVER}")
    await executor.close()

    assert (stopped, open_descriptors()) == (Ran(exit_code=0), before)


STOPPERS: Final = {
    "its supervisor": "kill -STOP $PPID; echo out; sleep 1000",
    "the fork server": f"kill -STOP {FORK_SERVER}; echo out; sleep 1000",
    "both": f"kill -STOP {FORK_SERVER} $PPID; echo out; sleep 1000",
}


async def stopped_by(stop: str, model: ScriptedModel, wire: Wire, marker: str) -> None:
    """Until a command has left a daemon, stopped somebody by this script, and said so."""
    model.says(sh("c1", f"setsid sh -c 'sleep 1000; :' {marker} & {stop}", timeout=600_000))
    wire.codex(1, "go")
    await wire.until(is_event("exec_command_output_delta"))


@pytest.mark.parametrize("how", ["end of stdin", pytest.param("SIGTERM", marks=pytest.mark.long)])
@pytest.mark.parametrize("whom", list(STOPPERS))
async def test_a_server_ends_in_order_whomever_its_command_has_stopped(
    scripted_model: ScriptedModel, marker: str, whom: str, how: str
) -> None:
    async with speaking(scripted_model) as wire:
        await stopped_by(STOPPERS[whom], scripted_model, wire, marker)
        if how == "SIGTERM":
            wire.raw.terminate()
        else:
            wire.raw.close_stdin()
        *_, answer = await wire.answer(1)
        exit_code = await wire.raw.exit_code()

        assert (answer, exit_code) == (failed(1, "Turn interrupted: the server was stopped"), 0)
        assert (marked(marker), wire.raw.stderr_text()) == ([], "")


@pytest.mark.parametrize("whom", ["its supervisor", "the fork server", "both"])
async def test_a_killed_server_leaves_nothing_whomever_its_command_has_stopped(
    scripted_model: ScriptedModel, marker: str, whom: str
) -> None:
    async with speaking(scripted_model) as wire:
        await stopped_by(STOPPERS[whom], scripted_model, wire, marker)
        await until_running(marker, 2)
        wire.raw.kill()
        exit_code = await wire.raw.exit_code()

        await nothing_left_of(marker)
        assert exit_code == -signal.SIGKILL


async def test_a_server_ends_while_its_command_stops_both_again_and_again(
    scripted_model: ScriptedModel, marker: str
) -> None:
    stop = f"echo out; while :; do kill -STOP {FORK_SERVER} $PPID; done"
    async with speaking(scripted_model) as wire:
        await stopped_by(stop, scripted_model, wire, marker)
        wire.raw.close_stdin()
        exit_code = await wire.raw.exit_code()

        assert (exit_code, marked(marker)) == (0, [])


# --- killed ------------------------------------------------------------------------------


async def test_a_daemon_that_left_and_then_kills_both_is_found(executor: Executor, marker: str) -> None:
    script = f"""{IN_PYTHON}
import signal
guardians = (os.getppid(), fork_server)
if os.fork(): signal.pause()
os.setsid()
if os.fork(): os._exit(0)
for guardian in guardians: os.kill(guardian, signal.SIGSTOP)  # so that neither sees the other die
for guardian in guardians: os.kill(guardian, signal.SIGKILL)
while True: signal.pause()
"""
    result = await ran(executor, *PYTHON, script, marker)

    assert (result, marked(marker)) == (Ran(signal=signal.SIGKILL), [])
    assert await ran(executor, "true") == Ran(exit_code=0)


async def test_an_interrupt_meant_for_others_disturbs_neither_guardian(
    executor: Executor, capfd: pytest.CaptureFixture[str]
) -> None:
    result = await ran(executor, "sh", "-c", f"kill -INT $PPID {FORK_SERVER}; echo on")
    again = await ran(executor, "sh", "-c", "kill -INT $$")

    assert (result, again) == (Ran(exit_code=0, stdout=b"on\n"), Ran(signal=signal.SIGINT))
    assert capfd.readouterr() == ("", "")


# --- hampered ----------------------------------------------------------------------------

HAMPERINGS: Final = {
    "descriptors": "resource.prlimit(fork_server, resource.RLIMIT_NOFILE, (2, 2))",
    "processes": "resource.prlimit(fork_server, resource.RLIMIT_NPROC, (1, 1))",
    "memory": "resource.prlimit(fork_server, resource.RLIMIT_AS, (2**27, 2**27))",
    "time": "resource.prlimit(fork_server, resource.RLIMIT_CPU, (600, 600))",
    "files": "resource.prlimit(fork_server, resource.RLIMIT_FSIZE, (4096, 4096))",
    "priority": "os.setpriority(os.PRIO_PROCESS, fork_server, 7)",
    "scheduling": "os.sched_setscheduler(fork_server, os.SCHED_BATCH, os.sched_param(0))",
}

INHERITED: Final = """
import os, resource
limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
print(limits, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)))
"""


@pytest.mark.parametrize("what", list(HAMPERINGS))
async def test_what_a_command_does_to_the_fork_server_reaches_no_other_command(
    executor: Executor, tmp_path: Path, what: str
) -> None:
    waiting = Waiting(executor, tmp_path / "gate")
    await waiting.runs()
    before = await ran(executor, *PYTHON, INHERITED)
    hampering = await ran(executor, *PYTHON, IN_PYTHON + HAMPERINGS[what])
    after = await asyncio.gather(*(ran(executor, *PYTHON, INHERITED) for _ in range(5)))
    waited = await waiting.exit_code()

    assert (before.exit_code, hampering, after) == (0, Ran(exit_code=0), [before] * 5)
    assert waited == 3  # it ran on


async def test_a_fork_server_that_cannot_even_wait_is_replaced(executor: Executor) -> None:
    hampering = "resource.prlimit(fork_server, resource.RLIMIT_NOFILE, (0, 0))"
    await ran(executor, *PYTHON, IN_PYTHON + hampering)  # which may be killed for it

    assert await ran(executor, "true") == Ran(exit_code=0)


async def test_of_fork_servers_that_gave_way_none_is_left(executor: Executor, tmp_path: Path) -> None:
    await ran(executor, "true")
    before = open_descriptors()
    waiting = Waiting(executor, tmp_path / "gate")
    await waiting.runs()
    for _ in range(3):
        await ran(executor, *PYTHON, IN_PYTHON + HAMPERINGS["files"])
    await ran(executor, "true")
    several = fork_servers()
    await waiting.exit_code()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(fork_servers()) > 1 or open_descriptors() > before:  # noqa: ASYNC110 - nobody tells us of that end
            await asyncio.sleep(0.005)

    assert (len(several) >= 2, open_descriptors()) == (True, before)


def fork_servers() -> list[int]:
    found = []
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # gone meanwhile
            if b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


CANNOT_FORK: Final = """
import errno, os, sys
def refuse(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
if os.listdir({tokens!r}):
    os.unlink(os.path.join({tokens!r}, os.listdir({tokens!r})[0]))
    os.fork = refuse
del sys.argv[1:4]  # the options, before the program to run and its arguments
exec(sys.argv.pop(1))
"""


@pytest.mark.parametrize("broken", [1, 2])
async def test_a_fork_server_that_cannot_fork_is_not_kept(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    tokens = tmp_path / "tokens"  # for each, one fork server does not work
    tokens.mkdir()
    for number in range(broken):
        (tokens / str(number)).touch()
    (tmp_path / "program").write_text(CANNOT_FORK.format(tokens=str(tokens)))
    monkeypatch.setattr(sys, "executable", str(script(tmp_path, f'{sys.executable} {tmp_path}/program "$@"')))
    if broken == 2:
        with pytest.raises(CommandNotStarted) as caught:
            await ran(executor, "true")
        assert caught.value.detail == (
            "Resource temporarily unavailable (os error 11): no more processes or threads may be started "
            "(RLIMIT_NPROC, pids.max of the control group)"
        )

    assert await ran(executor, "true") == Ran(exit_code=0)


def script(folder: Path, line: str) -> Path:
    """A program that becomes another one."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\nexec {line}\n")
    program.chmod(0o755)
    return program


# --- what commands are to have as if we were not there -----------------------------------


async def test_the_start_of_the_fork_server_is_no_time_of_the_command(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = script(tmp_path, f'sh -c \'sleep 2; exec {sys.executable} "$@"\' sh "$@"')
    monkeypatch.setattr(sys, "executable", str(late))
    ended = await executor.start(start_of("sleep", "0.1"), output=ignored)

    assert ended == Ended(exit_code=0, seconds=ended.seconds)
    assert 0.1 <= ended.seconds < 2


async def test_the_server_may_open_many_files_and_programs_as_many_as_without_it(
    scripted_model: ScriptedModel, marker: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = program("near", mark=marker)
    config = f'[mcp_servers.near]\ncommand = "{server.command}"\nargs = {list(server.args)}\n'
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        async with speaking(scripted_model, config=config) as wire:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            seen = await turn(wire, sh("c1", "ulimit -Sn; ulimit -Hn"))
            (near,) = marked(marker)
            found = [open_files(wire.raw.pid), open_files(near)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert seen.asked[-1:] == history("chat", Output("c1", told(f"300\n{hard}\n")))
    assert found == [(hard, hard), (300, hard)]


def open_files(pid: int) -> tuple[int, int]:
    found = re.search(r"^Max open files +(\d+) +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]), int(found[2])
