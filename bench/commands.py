"""Measures the time to run a command that does nothing, and the rate of command output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from bench.model import ToolCall, calls_of
from bench.pipe import Gone
from bench.report import BARE, Row
from bench.servers import CodexMcp, Parley, ParleyRunning, Running, Server

__all__ = ["CALLS", "command_output", "commands", "spawn_bare"]

CALLS: Final = 200
MEGABYTE: Final = 1_000_000
PRINTED: Final = 64 * MEGABYTE
PRINTED_TO_PEERS: Final = 4 * MEGABYTE
TIMEOUT_MS: Final = 60_000
READ_BYTES: Final = 64 * 1024
"""The maximum size of one read from a pipe, in bytes: the capacity of a pipe on Linux."""

BEGIN: Final = b'"method":"exec_command_begin"'
OUTPUT: Final = b'"method":"exec_command_output_delta"'
END: Final = b'"method":"exec_command_end"'
GOOD_END: Final = b'"exit_code":0'

_CHUNK: Final = re.compile(rb'"chunk":\[([^\]]*)\]')


# --- a command that does nothing ---------------------------------------------------------


def commands(base_url: str, peers: Sequence[Server], *, repetitions: int) -> list[Row]:
    servers = [Parley(), *_able(peers)]
    best: dict[str, float] = {}
    for _ in range(repetitions):
        for name, took in [*((server.name, _run(server, base_url)) for server in servers), (BARE, spawn_bare())]:
            best[name] = min(took, best.get(name, took))
    return [
        Row(
            what="time to run `true`",
            unit="ms",
            values={name: seconds * 1000 for name, seconds in best.items()},
            notes=(
                f"mean of {CALLS} calls in one response, from first begin to last end; best of {repetitions}",
                f"{best[Parley.name] / best[BARE]:.1f} × {BARE}, which calls posix_spawn and waitpid",
            ),
        )
    ]


def _able(peers: Iterable[Server]) -> list[Server]:
    """Return the peers that run the same calls and send the same events as Parley."""
    return [peer for peer in peers if isinstance(peer, CodexMcp)]


def _run(server: Server, base_url: str) -> float:
    """Run `true` in one turn, `CALLS` times. Return the mean time for one command, in seconds."""
    with server.ready(base_url) as running:
        _warm_up(running)
        running.begin(_asking_for(running, *([["true"]] * CALLS)))
        running.pipe.line_with(BEGIN)
        began = time.perf_counter()
        for _ in range(CALLS):
            if GOOD_END not in running.pipe.line_with(END):
                raise Gone(f"{server.name}: a command failed")
        return (time.perf_counter() - began) / CALLS


def _warm_up(running: Running) -> None:
    """Run one command, so that the server has loaded its modules and started its helper processes."""
    running.begin(_asking_for(running, ["true"]))
    running.pipe.line_with(running.end)


def _asking_for(running: Running, *wanted: Sequence[str]) -> str:
    """Return the message that makes the model call the `shell` tool for each of these commands."""
    calls = (ToolCall("shell", {"command": command, "timeout": TIMEOUT_MS}) for command in wanted)
    return calls_of(running.work.parent / "calls.json", calls)


def spawn_bare() -> float:
    """Run `true` with `posix_spawn` and `waitpid`, `CALLS` times. Return the mean time for one run, in seconds."""
    program = shutil.which("true")
    if program is None:
        raise Gone("the program `true` is not installed")
    began = time.perf_counter()
    for _ in range(CALLS):
        os.waitpid(os.posix_spawn(program, ["true"], os.environ), 0)
    return (time.perf_counter() - began) / CALLS


# --- a command that prints ---------------------------------------------------------------


class _Print(NamedTuple):
    """A kind of output, and the command that prints a given number of bytes of this kind."""

    what: str
    command: Callable[[int], list[str]]


PRINTS: Final = (
    _Print("zeros", lambda size: ["head", "-c", str(size), "/dev/zero"]),
    _Print("text", lambda size: ["sh", "-c", f"yes 'some words that stand on a line' | head -c {size}"]),
)


class _Rate(NamedTuple):
    """The output that a client received in one run."""

    arrived: float
    """The rate of the received output, in bytes per second."""
    share: float
    """The received output as a share of the printed output."""


def command_output(base_url: str, peers: Sequence[Server], *, repetitions: int) -> list[Row]:
    return [row for one in PRINTS for row in _rows(one, base_url, _able(peers), repetitions)]


def _rows(one: _Print, base_url: str, peers: Sequence[Server], repetitions: int) -> list[Row]:
    bare, drained = 0.0, 0.0
    followed: dict[str, _Rate] = {}
    for _ in range(repetitions):
        bare = max(bare, _read_bare(one.command(PRINTED)))
        drained = max(drained, _drain(one.command(PRINTED), base_url))
        for server in (Parley(), *peers):
            rate = _follow(server, one, base_url, PRINTED if isinstance(server, Parley) else PRINTED_TO_PEERS)
            followed[server.name] = max(rate, followed.get(server.name, rate))
    note = f"one command prints {PRINTED // MEGABYTE} MB"
    smaller = f", with peers {PRINTED_TO_PEERS // MEGABYTE} MB" if peers else ""
    return [
        Row(
            what=f"command output, {one.what}, without a client",
            unit="MB/s",
            values={Parley.name: drained / MEGABYTE, BARE: bare / MEGABYTE},
            notes=(f"{note}; {drained / bare:.2f} × {BARE}, which only reads a pipe; best of {repetitions}",),
        ),
        Row(
            what=f"command output, {one.what}, to a client",
            unit="MB/s",
            values={name: rate.arrived / MEGABYTE for name, rate in followed.items()},
            notes=(
                f"{note}{smaller}; received output, from begin to end; best of {repetitions}",
                *(
                    f"{name} omitted {1 - rate.share:.1%} of the output"
                    for name, rate in followed.items()
                    if rate.share < 1
                ),
            ),
        ),
    ]


def _read_bare(command: Sequence[str]) -> float:
    """Run a command without a server and read its output from a pipe. Return the rate in bytes per second."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        pipe, size = process.stdout.fileno(), 0
        while data := os.read(pipe, READ_BYTES):
            size += len(data)
    return size / (time.perf_counter() - began)


def _drain(command: Sequence[str], base_url: str) -> float:
    """Run a command in a conversation without a stream. Return the rate at which the server reads the output, in
    bytes per second. The rate is computed from the `duration` of the event `exec_command_end`."""
    with Parley().ready(base_url) as running:
        assert isinstance(running, ParleyRunning)
        _warm_up(running)
        conversation = running.open()
        running.pipe.request(*running.turn(conversation, _asking_for(running, command)))
        position = 0
        while True:
            asked = {"conversation_id": conversation, "after": position, "wait_seconds": 10}
            found = running.tool("conversationRead", asked)["structuredContent"]
            for event in found["events"]:
                if event["msg"]["type"] == "exec_command_end":
                    duration = event["msg"]["duration"]
                    return PRINTED / (int(duration["secs"]) + int(duration["nanos"]) / 1e9)
            position = found["seq"]


def _follow(server: Server, one: _Print, base_url: str, size: int) -> _Rate:
    """Run a command in a conversation with a stream, and measure the output that the client receives."""
    with server.ready(base_url) as running:
        _warm_up(running)
        running.begin(_asking_for(running, one.command(size)))
        seconds, blocks = _until_the_end(running)
    chunks = (_CHUNK.search(line) for line in _lines(blocks) if OUTPUT in line)
    arrived = sum(chunk[1].count(b",") + 1 for chunk in chunks if chunk)
    if not arrived:
        raise Gone(f"{server.name} sent no output")
    return _Rate(arrived / seconds, arrived / size)


def _until_the_end(running: Running) -> tuple[float, list[bytes]]:
    """Read until the command has ended. Return its duration in seconds and the received blocks.

    The blocks are parsed after the measurement.
    """
    blocks: list[bytes] = []
    began, edge = 0.0, b""
    while True:
        blocks.append(running.pipe.read())
        seen = edge + blocks[-1]  # a marker may be split between two blocks
        if not began and BEGIN in seen:
            began = time.perf_counter()
        if END in seen:
            return time.perf_counter() - began, blocks
        edge = seen[-len(BEGIN) :]


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
