"""Measures the time from process start to the `initialize` response, with an empty and with a full home."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.homes import fill
from bench.pipe import Gone
from bench.report import BARE, Row
from bench.servers import Parley, ParleyRunning, Server

__all__ = ["bare_start", "full_home", "startup"]

STARTS: Final = 15
RATIO: Final = 1.6
BARE_COMMAND: Final = (sys.executable, "-c", "import asyncio, msgspec")

CONVERSATIONS: Final = 10_000
LISTED: Final = 50
FULL_RATIO: Final = 1.05
"""The budget for the start with many conversations, as a multiple of the start with an empty home. The
conversations should add no time. The remaining 5 % allow for differences between runs."""


def startup(base_url: str, peers: Sequence[Server]) -> list[Row]:
    servers = [Parley(), *peers]
    taken: dict[str, list[float]] = {name: [] for name in (BARE, *(server.name for server in servers))}
    for _ in range(STARTS):
        taken[BARE].append(bare_start())
        for server in servers:
            taken[server.name].append(_start(server, base_url))
    medians = {name: median(times) * 1000 for name, times in taken.items()}
    ratio = medians[Parley.name] / medians[BARE]
    return [
        Row(
            what="process start to initialize response",
            unit="ms",
            values={name: medians[name] for name in (*(server.name for server in servers), BARE)},
            budget=f"≤ {RATIO} × {BARE}",
            kept=ratio <= RATIO,
            notes=(
                f"median of {STARTS} alternating runs; {ratio:.2f} × {BARE}",
                f'{BARE} is a complete run of `python -c "import asyncio, msgspec"`',
            ),
        )
    ]


def bare_start() -> float:
    began = time.perf_counter()
    subprocess.run(BARE_COMMAND, check=True)
    return time.perf_counter() - began


def _start(server: Server, base_url: str) -> float:
    with server.start(base_url) as running:
        running.initialize()
        return time.perf_counter() - running.pipe.started_at


class _Began(NamedTuple):
    initialized: float
    """The time from process start to the `initialize` response, in seconds."""
    listed: float
    """The time from the first call of `conversationsList` to its response, in seconds."""


def full_home(base_url: str) -> list[Row]:
    """Measure the start and the first call of `conversationsList`, with a full home and with an empty home."""
    server = Parley()
    full, empty = [], []
    with server.home(base_url) as (environ, work), server.home(base_url) as (empty_environ, empty_work):
        fill(Path(environ[server.home_variable]), conversations=CONVERSATIONS)
        for _ in range(STARTS):
            full.append(_begin(server, environ, work, shown=LISTED))
            empty.append(_begin(server, empty_environ, empty_work, shown=0))
    started, without = (min(one.initialized for one in begun) * 1000 for begun in (full, empty))
    listed, nothing = (min(one.listed for one in begun) * 1000 for begun in (full, empty))
    ratio = started / without
    return [
        Row(
            what=f"process start with {CONVERSATIONS:,} conversations",
            unit="ms",
            values={Parley.name: started},
            budget=f"≤ {FULL_RATIO} × an empty home",
            kept=ratio <= FULL_RATIO,
            notes=(
                f"{ratio:.3f} × an empty home, which takes {without:.1f} ms; best of {STARTS} alternating runs",
            ),
        ),
        Row(
            what=f"first list with {CONVERSATIONS:,} conversations",
            unit="ms",
            values={Parley.name: listed},
            notes=(
                f"first call of conversationsList, for {LISTED} conversations; {nothing:.1f} ms with an empty home",
            ),
        ),
    ]


def _begin(server: Parley, environ: dict[str, str], work: Path, *, shown: int) -> _Began:
    with server.start_in(environ, work) as running:
        assert isinstance(running, ParleyRunning)
        running.initialize()
        initialized = time.perf_counter()
        answer = running.tool("conversationsList", {"limit": LISTED})
        listed = time.perf_counter()
    if (found := len(answer["structuredContent"]["conversations"])) != shown:
        raise Gone(f"the list shows {found} conversations, not {shown}")
    return _Began(initialized - running.pipe.started_at, listed - initialized)
