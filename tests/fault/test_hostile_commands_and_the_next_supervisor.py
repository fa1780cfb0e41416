"""Commands that turn against the supervisor that waits for the command after them."""

from __future__ import annotations

import asyncio
import os
import select
from typing import Final

import pytest

from kit.system.commands import PATIENCE_SECONDS, PYTHON, Ran, ran
from parley.tools.commands.executor import Executor

FIND: Final = """
import os, resource, signal, time
def state_parent_session(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3])
def waits(pid):
    try: state, _, session = state_parent_session(pid)
    except OSError: return False  # one that ended meanwhile
    return state not in "ZX" and session == fork_server  # those with a command have one of their own
def found():
    children = open(f"/proc/{fork_server}/task/{fork_server}/children").read().split()
    return [int(pid) for pid in children if waits(pid)]
supervisor = os.getppid()
_, fork_server, _ = state_parent_session(supervisor)
# It is forked while we begin, and one that was killed may go late.
while len(all_that_wait := found()) != 1: time.sleep(0.001)
(waiting,) = all_that_wait
"""
"""How a program in Python begins that knows the one that waits."""

INHERITED: Final = """
limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
print(limits, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)))
"""

ATTEMPTS: Final = {
    "killed": "os.kill(waiting, signal.SIGKILL)",
    "stopped": "os.kill(waiting, signal.SIGSTOP)",
    "told to end": "os.kill(waiting, signal.SIGTERM)",
    "told to end again and again": "for _ in range(30_000): os.kill(waiting, signal.SIGTERM)",
    "woken": "os.kill(waiting, signal.SIGCONT); os.kill(waiting, signal.SIGCHLD)",
    "without descriptors": "resource.prlimit(waiting, resource.RLIMIT_NOFILE, (0, 0))",
    "without time": "resource.prlimit(waiting, resource.RLIMIT_CPU, (600, 600))",
    "with small files": "resource.prlimit(waiting, resource.RLIMIT_FSIZE, (4096, 4096))",
    "late": "os.setpriority(os.PRIO_PROCESS, waiting, 7)",
    "at the end of the queue": "os.sched_setscheduler(waiting, os.SCHED_BATCH, os.sched_param(0))",
    "stopped and hampered": "os.kill(waiting, signal.SIGSTOP); os.setpriority(os.PRIO_PROCESS, waiting, 7)",
}


@pytest.mark.parametrize("what", list(ATTEMPTS))
async def test_what_a_command_does_to_the_next_supervisor_reaches_no_other_command(
    executor: Executor, what: str
) -> None:
    before = await ran(executor, *PYTHON, FIND + INHERITED)
    attempt = await ran(executor, *PYTHON, FIND + ATTEMPTS[what])
    after = [await ran(executor, *PYTHON, FIND + INHERITED) for _ in range(2)]

    assert (before.exit_code, attempt, after) == (0, Ran(exit_code=0), [before] * 2)


async def test_nobody_but_the_command_holds_its_pipes(executor: Executor) -> None:
    look = """
ours = {os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)}
def held(pid): return {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
print([len(ours & held(pid)) for pid in (fork_server, supervisor, waiting)])
"""
    looks = [await ran(executor, *PYTHON, FIND + look) for _ in range(2)]

    assert looks == [Ran(exit_code=0, stdout=b"[0, 0, 0]\n")] * 2


@pytest.mark.parametrize("is_stopped", [False, True], ids=["as it is", "stopped"])
@pytest.mark.parametrize("ending", ["in order", "killed"])
async def test_the_next_supervisor_ends_with_the_fork_server(
    executor: Executor, is_stopped: bool, ending: str
) -> None:
    stop = "os.kill(waiting, signal.SIGSTOP)" if is_stopped else ""
    found = await ran(executor, *PYTHON, f"{FIND}{stop}\nprint(fork_server, waiting)")
    fork_server, waiting = map(int, found.stdout.split())
    descriptor = os.pidfd_open(waiting)
    try:
        if ending == "killed":
            os.kill(fork_server, 9)
        else:
            await executor.close()
        ended, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], PATIENCE_SECONDS)
    finally:
        os.close(descriptor)

    assert ended == [descriptor]
