"""Measures the time to create a conversation, and the memory of an idle conversation."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.report import Row
from bench.servers import ON_DISK, Parley, Server
from bench.store import sync_seconds

__all__ = ["idle_memory", "opening"]

OPENED: Final = 1000
IDLE: Final = 2000
OF_PEERS: Final = 50
SETTLED_AFTER: Final = 50
"""The number of short turns before the first measurement of the memory. After these turns, the server has loaded
all modules that it needs."""

OPEN_MS: Final = 1.0
IDLE_KIB: Final = 40


def opening(base_url: str, peers: Sequence[Server], *, repetitions: int) -> list[Row]:
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=ON_DISK) as directory:
        sync_ms = sync_seconds(Path(directory, "synced")) * 1000
    for _ in range(repetitions):
        for server in (Parley(), *peers):
            took = _open(server, base_url, OPENED if isinstance(server, Parley) else OF_PEERS)
            best[server.name] = min(took, best.get(server.name, took))
    return [
        Row(
            what="time to create a conversation",
            unit="ms",
            values={name: seconds * 1000 for name, seconds in best.items()},
            budget=f"≤ {OPEN_MS:g} ms + one sync",
            kept=best[Parley.name] * 1000 <= OPEN_MS + sync_ms,
            notes=(
                f"mean of {OPENED:,} sequential calls, with peers {OF_PEERS}; best of {repetitions}",
                f"one sync of the disk takes {sync_ms:.2f} ms",
            ),
        ),
        Row(
            what="conversations created",
            unit="/s",
            values={name: 1 / seconds for name, seconds in best.items()},
        ),
    ]


def _open(server: Server, base_url: str, number: int) -> float:
    """Create conversations sequentially. Return the mean time for one of them, in seconds."""
    with server.ready(base_url) as running:
        running.open()
        began = time.perf_counter()
        for _ in range(number):
            running.open()
        return (time.perf_counter() - began) / number


def idle_memory(base_url: str, peers: Sequence[Server]) -> list[Row]:
    values = {
        server.name: _idle_kib(server, base_url, IDLE if isinstance(server, Parley) else OF_PEERS)
        for server in (Parley(), *peers)
    }
    return [
        Row(
            what="memory of an idle conversation",
            unit="KiB",
            values=values,
            budget=f"≤ {IDLE_KIB} KiB",
            kept=values[Parley.name] <= IDLE_KIB,
            notes=(f"growth of VmRSS over {IDLE:,} conversations of one short turn, with peers {OF_PEERS}",),
        )
    ]


def _idle_kib(server: Server, base_url: str, number: int) -> float:
    with server.ready(base_url) as running:
        for _ in range(SETTLED_AFTER):
            running.run_short_turn()
        before = running.resident_kib()
        for _ in range(number):
            running.run_short_turn()
        return (running.resident_kib() - before) / number
