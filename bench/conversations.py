"""What a conversation costs: the time to open one, and the memory of one that is idle."""

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
"""Conversations before the first look at the memory: by then, what is loaded once is loaded."""

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
            what="opening a conversation",
            unit="ms",
            values={name: seconds * 1000 for name, seconds in best.items()},
            budget=f"≤ {OPEN_MS:g} ms + one sync",
            kept=best[Parley.name] * 1000 <= OPEN_MS + sync_ms,
            notes=(
                f"mean of {OPENED:,} one after another, of peers {OF_PEERS}; best of {repetitions}",
                f"one sync of this disk takes {sync_ms:.2f} ms",
            ),
        ),
        Row(
            what="conversations opened",
            unit="/s",
            values={name: 1 / seconds for name, seconds in best.items()},
        ),
    ]


def _open(server: Server, base_url: str, number: int) -> float:
    """Seconds for one."""
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
            notes=(f"growth of VmRSS over {IDLE:,} with one short turn each, of peers {OF_PEERS}",),
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
