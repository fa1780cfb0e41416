"""No process of a command is left after the end of the command, the turn or the server, for any kind of end."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Final
from uuid import uuid4

import pytest

from kit.clients.codex_calls import Output, Wire, answered, history, interrupted, is_event, speaking
from kit.clients.shell_turns import TIMEOUT_SECONDS, Gate, nothing_left_of, ran, sh, turn, until_running
from kit.servers.on_terminal import ON_TERMINAL
from kit.system.commands import marked
from parley.testing import Call, ScriptedModel

pytestmark = pytest.mark.usefixtures("servers_in_process")

DAEMON: Final = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 1024)
signal.pause()
"""
"""A program that leaves its parent, its session and its pipes, and ignores the signals that ask it to end."""

SLEEPER: Final = "sh -c 'sleep 1000; :'"
"""A shell command that does not end by itself and has a child process."""


def in_background(marker: str) -> str:
    """Return a script that starts a child and a grandchild and does not wait for them."""
    return f"export LEFT={marker}; {SLEEPER} &"


IN_BACKGROUND: Final = 2


def daemons(marker: str) -> str:
    """Return a script that starts such children, a process in its own session, and a daemon."""
    return f"{in_background(marker)} setsid {SLEEPER} & {sys.executable} -I -S -c '{DAEMON}'"


DAEMONS: Final = 2 * IN_BACKGROUND + 1
"""The number of processes after all have started. By then the parents of the daemon have ended."""


def stubborn(marker: str) -> Call:
    """Return a command that starts all of these, prints a line, and does not end."""
    return sh("c1", f"trap '' TERM; {daemons(marker)}; echo up; {SLEEPER}; :", timeout=600_000)


STUBBORN: Final = DAEMONS + 3
"""The number of processes of a stubborn command: the daemons, the shell of the command, whose arguments contain the
marker, and the two processes of `SLEEPER`.
"""


async def begin(wire: Wire, marker: str, *, request_id: int = 1) -> None:
    """Start a stubborn command, and wait until all its processes run."""
    wire.model.says(stubborn(marker))
    wire.codex(request_id, "go")
    await wire.until(is_event("exec_command_output_delta"))
    await until_running(marker, STUBBORN)


# --- commands that end ---------------------------------------------------------------------


@pytest.mark.promises("shell.nothing-left")
async def test_background_processes_of_a_command_end_with_it(parley_model: ScriptedModel, marker: str) -> None:
    async with speaking(parley_model) as wire:
        # the command's result is not delayed, although a background process holds the pipes
        async with asyncio.timeout(TIMEOUT_SECONDS):
            seen = await turn(wire, sh("c1", f"{in_background(marker)} echo hi"))
        left = marked(marker)

        assert seen.asked[-1:] == history("chat", Output("c1", ran("hi\n")))
        assert left == []


@pytest.mark.promises("shell.nothing-left")
async def test_daemons_end_with_the_command_that_started_them(parley_model: ScriptedModel, marker: str) -> None:
    script = f"{daemons(marker)}; read _ < gate; echo hi"
    async with speaking(parley_model) as wire, Gate(wire.work / "gate") as gate:
        running = asyncio.create_task(turn(wire, sh("c1", script)))
        await until_running(marker, DAEMONS)
        gate.open()
        seen = await running
        left = marked(marker)

        assert seen.asked[-1:] == history("chat", Output("c1", ran("hi\n")))
        assert left == []


async def test_processes_of_a_command_are_dead_before_the_next_one_begins(
    parley_model: ScriptedModel, marker: str
) -> None:
    # The dot prevents the pattern from matching the processes that search.
    look = f"cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c '^LEFT={marker[:-1]}.$'"
    async with speaking(parley_model) as wire:
        seen = await turn(wire, sh("c1", f"{daemons(marker)}; echo hi"), sh("c2", look))

        assert seen.asked[-1:] == history("chat", Output("c2", ran("0\n", exit_code=1)))


# --- commands that are ended ---------------------------------------------------------------


@pytest.mark.promises("shell.nothing-left")
async def test_a_timeout_ends_all_that_a_command_started(parley_model: ScriptedModel, marker: str) -> None:
    script = f"trap '' TERM; {daemons(marker)}; {SLEEPER}; :"
    async with speaking(parley_model) as wire:
        seen = await turn(wire, sh("c1", script, timeout=1000))
        left = marked(marker)

        output = "failed in sandbox None with execution error: command timed out"
        assert seen.asked[-1:] == history("chat", Output("c1", output))
        assert left == []


@pytest.mark.promises("shell.nothing-left")
async def test_an_interrupt_ends_all_processes_of_a_command_before_clients_see_its_end(
    parley_model: ScriptedModel, marker: str
) -> None:
    async with speaking(parley_model) as wire:
        await begin(wire, marker)
        wire.cancel(1)
        *_, answer = await wire.answer(1)
        left = marked(marker)
        wire.reply(2, "and now?")

        assert (answer, left) == (interrupted(1), [])
        assert (await wire.answer(2))[-1] == answered(2, "Done")


async def test_a_signal_that_interrupts_the_turns_of_a_server_ends_their_commands(
    parley_model: ScriptedModel, marker: str
) -> None:
    async with speaking(parley_model, program=ON_TERMINAL) as wire:
        await begin(wire, marker)
        wire.raw.process.send_signal(signal.SIGINT)
        *_, answer = await wire.answer(1)
        left = marked(marker)

        assert (answer, left) == (interrupted(1), [])
        assert await wire.silence() == []


# --- servers that end ----------------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.promises("shell.nothing-left")
@pytest.mark.parametrize("how", ["end of stdin", "SIGTERM"])
async def test_a_server_that_ends_in_order_ends_its_commands_first(
    parley_model: ScriptedModel, marker: str, how: str
) -> None:
    other = uuid4().hex
    async with speaking(parley_model) as wire:
        await begin(wire, marker)
        await begin(wire, other, request_id=2)
        if how == "SIGTERM":
            wire.raw.terminate()
        else:
            wire.raw.close_stdin()
        exit_code = await wire.raw.exit_code()

        assert (exit_code, marked(marker), marked(other)) == (0, [], [])


@pytest.mark.child_process
@pytest.mark.promises("shell.nothing-left")
async def test_a_server_that_is_killed_leaves_nothing_of_its_commands(
    parley_model: ScriptedModel, marker: str
) -> None:
    async with speaking(parley_model) as wire:
        await begin(wire, marker)
        wire.raw.kill()
        exit_code = await wire.raw.exit_code()

        await nothing_left_of(marker)
        assert exit_code == -9


@pytest.mark.child_process
async def test_a_server_that_is_killed_takes_nothing_of_another_with_it(
    parley_model: ScriptedModel, marker: str
) -> None:
    theirs = uuid4().hex
    async with speaking(parley_model) as wire, speaking(parley_model) as elsewhere:
        await begin(elsewhere, theirs)
        await begin(wire, marker)
        wire.raw.kill()
        await nothing_left_of(marker)
        await until_running(theirs, STUBBORN)  # the processes of the other server are still running
        elsewhere.cancel(1)
        *_, answer = await elsewhere.answer(1)

        assert (answer, marked(theirs)) == (interrupted(1), [])
