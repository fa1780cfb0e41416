"""From the start of the process to the answer to `initialize`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from bench.report import Row
from bench.servers import Parley, Server

__all__ = ["startup"]

STARTS: Final = 15
RATIO: Final = 1.6
BARE: Final = "bare Python"
BARE_COMMAND: Final = (sys.executable, "-c", "import asyncio, msgspec")


def startup(base_url: str, peers: Sequence[Server]) -> list[Row]:
    servers = [Parley(), *peers]
    taken: dict[str, list[float]] = {name: [] for name in (BARE, *(server.name for server in servers))}
    for _ in range(STARTS):
        taken[BARE].append(_bare())
        for server in servers:
            taken[server.name].append(_start(server, base_url))
    medians = {name: median(times) * 1000 for name, times in taken.items()}
    ratio = medians[Parley.name] / medians[BARE]
    return [
        Row(
            what="start to the initialize answer",
            unit="ms",
            values={name: medians[name] for name in (*(server.name for server in servers), BARE)},
            budget=f"≤ {RATIO} × {BARE}",
            kept=ratio <= RATIO,
            notes=(
                f"median of {STARTS}, taking turns; {ratio:.2f} × {BARE}",
                f'{BARE} is `python -c "import asyncio, msgspec"` to its end',
            ),
        )
    ]


def _bare() -> float:
    began = time.perf_counter()
    subprocess.run(BARE_COMMAND, check=True)
    return time.perf_counter() - began


def _start(server: Server, base_url: str) -> float:
    with server.start(base_url) as running:
        running.initialize()
        return time.perf_counter() - running.pipe.started_at
