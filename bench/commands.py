"""What a command costs: the time to run one that does nothing, and the way of what one prints."""

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
"""All that a pipe holds."""

BEGIN: Final = b'"method":"exec_command_begin"'
OUTPUT: Final = b'"method":"exec_command_output_delta"'
END: Final = b'"method":"exec_command_end"'
GOOD_END: Final = b'"exit_code":0'

_CHUNK: Final = re.compile(rb'"chunk":\[([^\]]*)\]')


# --- one that does nothing ---------------------------------------------------------------


def commands(base_url: str, peers: Sequence[Server], *, repetitions: int) -> list[Row]:
    servers = [Parley(), *_able(peers)]
    best: dict[str, float] = {}
    for _ in range(repetitions):
        for name, took in [*((server.name, _run(server, base_url)) for server in servers), (BARE, spawn_bare())]:
            best[name] = min(took, best.get(name, took))
    return [
        Row(
            what="running `true`",
            unit="ms",
            values={name: seconds * 1000 for name, seconds in best.items()},
            notes=(
                f"mean of {CALLS} calls of one response, from first begin to last end; best of {repetitions}",
                f"{best[Parley.name] / best[BARE]:.1f} × {BARE}, which is posix_spawn and waitpid",
            ),
        )
    ]


def _able(peers: Iterable[Server]) -> list[Server]:
    """Those that run the same calls and send the same events."""
    return [peer for peer in peers if isinstance(peer, CodexMcp)]


def _run(server: Server, base_url: str) -> float:
    """Seconds for one."""
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
    """Run one, so that what is loaded and started once is there."""
    running.begin(_asking_for(running, ["true"]))
    running.pipe.line_with(running.end)


def _asking_for(running: Running, *wanted: Sequence[str]) -> str:
    """The message of a turn in which these commands are run."""
    calls = (ToolCall("shell", {"command": command, "timeout": TIMEOUT_MS}) for command in wanted)
    return calls_of(running.work.parent / "calls.json", calls)


def spawn_bare() -> float:
    """Seconds for one."""
    program = shutil.which("true")
    if program is None:
        raise Gone("there is no `true` here")
    began = time.perf_counter()
    for _ in range(CALLS):
        os.waitpid(os.posix_spawn(program, ["true"], os.environ), 0)
    return (time.perf_counter() - began) / CALLS


# --- one that prints ---------------------------------------------------------------------


class _Print(NamedTuple):
    """A command, for any number of bytes."""

    what: str
    command: Callable[[int], list[str]]


PRINTS: Final = (
    _Print("zeros", lambda size: ["head", "-c", str(size), "/dev/zero"]),
    _Print("text", lambda size: ["sh", "-c", f"yes 'some words that stand on a line' | head -c {size}"]),
)


class _Rate(NamedTuple):
    """Of one run, in bytes a second."""

    arrived: float
    share: float
    """How much of what was printed arrived."""


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
    note = f"{PRINTED // MEGABYTE} MB of one command"
    smaller = f", of peers {PRINTED_TO_PEERS // MEGABYTE} MB" if peers else ""
    return [
        Row(
            what=f"output, {one.what}, nobody follows",
            unit="MB/s",
            values={Parley.name: drained / MEGABYTE, BARE: bare / MEGABYTE},
            notes=(
                f"{note}; {drained / bare:.2f} × {BARE}, which reads the same from a pipe; best of {repetitions}",
            ),
        ),
        Row(
            what=f"output, {one.what}, to a client",
            unit="MB/s",
            values={name: rate.arrived / MEGABYTE for name, rate in followed.items()},
            notes=(
                f"{note}{smaller}: what arrived, from begin to end; best of {repetitions}",
                *(f"{name} left out {1 - rate.share:.1%}" for name, rate in followed.items() if rate.share < 1),
            ),
        ),
    ]


def _read_bare(command: Sequence[str]) -> float:
    """Bytes a second."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        pipe, size = process.stdout.fileno(), 0
        while data := os.read(pipe, READ_BYTES):
            size += len(data)
    return size / (time.perf_counter() - began)


def _drain(command: Sequence[str], base_url: str) -> float:
    """Bytes a second that are read while nobody follows, by the server's own clock."""
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
    """How long a command took, and all that came meanwhile: while the clock runs it is only kept."""
    blocks: list[bytes] = []
    began, edge = 0.0, b""
    while True:
        blocks.append(running.pipe.read())
        seen = edge + blocks[-1]  # a word may be cut
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
