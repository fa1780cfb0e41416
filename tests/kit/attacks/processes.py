"""Runs inside the command: attempts to read, change, stop or signal the server and a foreign process."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
from typing import Final

from kit.attacks.attempts import NotPossible, World, attempt
from kit.attacks.calls import call

ATTACH, SEIZE = 16, 0x4206
PRIO_PROCESS, PRIO_PGRP, PRIO_USER = 0, 1, 2
SAME_PROCESS: Final = "a computer where one may look into processes of the same user"


def both(world: World) -> tuple[int, int]:
    return world.server, world.foreign


def any_of(world: World, attack: object) -> None:
    """Make the attempt on the server and on the foreign process; it worked if either did."""
    assert callable(attack)
    refused: OSError | NotPossible | None = None
    for pid in both(world):
        try:
            attack(pid)
            return
        except (OSError, NotPossible) as error:
            refused = error
    assert refused is not None
    raise refused


# --- reading another process ------------------------------------------------------------------


@attempt(needs=SAME_PROCESS)
def read_the_memory(world: World) -> None:
    with open(f"/proc/{world.foreign}/mem", "rb", buffering=0) as memory:
        memory.seek(world.secret_at)
        if memory.read(len(world.secret)).decode() != world.secret:
            raise NotPossible("something else is there")


@attempt(needs=SAME_PROCESS)
def read_the_memory_of_the_server(world: World) -> None:
    with open(f"/proc/{world.server}/mem", "rb", buffering=0):
        pass


@attempt(needs=SAME_PROCESS)
def copy_the_memory(world: World) -> None:
    copy = ctypes.create_string_buffer(len(world.secret))
    local = (ctypes.c_size_t * 2)(ctypes.addressof(copy), len(copy))
    remote = (ctypes.c_size_t * 2)(world.secret_at, len(copy))
    call("process_vm_readv", world.foreign, local, 1, remote, 1, 0)


@attempt(needs=SAME_PROCESS)
def overwrite_the_memory(world: World) -> None:
    # The same bytes are written, so that later attempts still find the secret.
    same = ctypes.create_string_buffer(world.secret.encode(), len(world.secret))
    local = (ctypes.c_size_t * 2)(ctypes.addressof(same), len(same))
    remote = (ctypes.c_size_t * 2)(world.secret_at, len(same))
    call("process_vm_writev", world.foreign, local, 1, remote, 1, 0)


@attempt(needs=SAME_PROCESS)
def read_the_environment(world: World) -> None:
    with open(f"/proc/{world.foreign}/environ", "rb") as environment:
        if world.secret.encode() not in environment.read():
            raise NotPossible("no secret in it")


@attempt(needs=SAME_PROCESS)
def read_the_environment_of_the_server(world: World) -> None:
    with open(f"/proc/{world.server}/environ", "rb") as environment:
        if not environment.read():
            raise NotPossible("nothing in it")


@attempt(needs=SAME_PROCESS)
def read_where_things_are(world: World) -> None:
    def read(pid: int) -> None:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            if not maps.read(1):
                raise NotPossible("nothing in it")

    any_of(world, read)


@attempt(needs=SAME_PROCESS)
def list_descriptors(world: World) -> None:
    any_of(world, lambda pid: os.readlink(f"/proc/{pid}/fd/0"))


@attempt(needs=SAME_PROCESS)
def see_its_directory(world: World) -> None:
    any_of(world, lambda pid: os.readlink(f"/proc/{pid}/cwd"))


@attempt(needs=SAME_PROCESS)
def take_a_descriptor(world: World) -> None:
    any_of(world, lambda pid: call("pidfd_getfd", os.pidfd_open(pid), 0, 0))


@attempt(needs=SAME_PROCESS)
def attach_to_it(world: World) -> None:
    call("ptrace", ATTACH, world.foreign, 0, 0)
    os.waitpid(world.foreign, 0x40000000)
    call("ptrace", 17, world.foreign, 0, 0)


@attempt(needs=SAME_PROCESS)
def seize_it(world: World) -> None:
    call("ptrace", SEIZE, world.foreign, 0, 0)


@attempt(needs=SAME_PROCESS)
def compare_with_it(world: World) -> None:
    any_of(world, lambda pid: call("kcmp", os.getpid(), pid, 0, 0, 0))


@attempt(needs="performance counters")
def count_its_events(world: World) -> None:
    wanted = (ctypes.c_uint32 * 32)(1, 128)  # a software counter: the CPU clock
    any_of(world, lambda pid: call("perf_event_open", wanted, pid, -1, -1, 0))


@attempt(needs=SAME_PROCESS)
def ask_for_its_memory_to_be_dropped(world: World) -> None:
    advice = (ctypes.c_size_t * 2)(world.secret_at & ~4095, 4096)
    call("process_madvise", os.pidfd_open(world.foreign), advice, 1, 20, 0)  # MADV_COLD


# --- signals ----------------------------------------------------------------------------


@attempt()
def send_a_signal(world: World) -> None:
    os.kill(world.foreign, signal.SIGUSR1)


@attempt()
def send_a_signal_to_the_server(world: World) -> None:
    os.kill(world.server, 0)


@attempt()
def stop_it(world: World) -> None:
    os.kill(world.foreign, signal.SIGSTOP)
    os.kill(world.foreign, signal.SIGCONT)


@attempt()
def send_a_signal_to_its_group(world: World) -> None:
    os.killpg(world.foreign, signal.SIGUSR1)


@attempt()
def send_a_signal_by_descriptor(world: World) -> None:
    signal.pidfd_send_signal(os.pidfd_open(world.foreign), signal.SIGUSR1)


@attempt()
def send_a_signal_as_the_owner_of_a_pipe(world: World) -> None:
    # The writer gets no error: the foreign process reports the signal to the test.
    heard, said = os.pipe()
    fcntl.fcntl(heard, fcntl.F_SETOWN, world.foreign)
    fcntl.fcntl(heard, 10, signal.SIGUSR2)  # F_SETSIG
    fcntl.fcntl(heard, fcntl.F_SETFL, os.O_ASYNC)
    os.write(said, b"x")
    raise NotPossible("as far as this process can see")


# --- resources of another process -------------------------------------------------------------


@attempt()
def change_its_limits(world: World) -> None:
    def change(pid: int) -> None:
        limits = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, limits)

    any_of(world, change)


@attempt()
def change_its_priority(world: World) -> None:
    any_of(world, lambda pid: os.setpriority(PRIO_PROCESS, pid, os.getpriority(PRIO_PROCESS, pid)))


@attempt()
def change_the_priority_of_its_group(world: World) -> None:
    os.setpriority(PRIO_PGRP, world.foreign, os.getpriority(PRIO_PGRP, world.foreign))


@attempt()
def change_its_place_in_the_queue_for_the_disk(world: World) -> None:
    any_of(world, lambda pid: call("ioprio_set", 1, pid, 2 << 13 | 4))


@attempt()
def change_its_processors(world: World) -> None:
    any_of(world, lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(pid)))


@attempt()
def change_how_it_is_scheduled(world: World) -> None:
    any_of(world, lambda pid: os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0)))


@attempt()
def change_how_it_is_scheduled_by_the_newer_call(world: World) -> None:
    wanted = (ctypes.c_uint32 * 12)(48)
    any_of(world, lambda pid: call("sched_setattr", pid, wanted, 0))


@attempt()
def offer_it_to_be_killed_for_memory(world: World) -> None:
    def offer(pid: int) -> None:
        with open(f"/proc/{pid}/oom_score_adj", "r+") as score:
            found = score.read()
            score.seek(0)
            score.write(found)

    any_of(world, offer)
