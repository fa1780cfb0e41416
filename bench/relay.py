"""Measures the relay from `parley mcp` to a resident server: start time, rate of deltas and CPU time per delta."""

from __future__ import annotations

import time
from statistics import median
from typing import Final

from bench.model import deltas_of
from bench.report import BARE, Row
from bench.resident import resident
from bench.servers import Parley
from bench.startup import bare_start

__all__ = ["relay"]

STARTS: Final = 15
DELTAS: Final = 100_000
IN_PROCESS: Final = "parley, in process"


def relay(base_url: str, *, repetitions: int) -> list[Row]:
    with resident(base_url) as server:
        taken: dict[str, list[float]] = {Parley.name: [], IN_PROCESS: [], BARE: []}
        for _ in range(STARTS):
            taken[BARE].append(bare_start())
            for name, arguments in ((Parley.name, ()), (IN_PROCESS, ("--in-process",))):
                began = time.perf_counter()
                with Parley(*arguments).start_in(server.environ, server.work) as running:
                    running.initialize()
                    taken[name].append(time.perf_counter() - began)
        rates: dict[str, list[float]] = {Parley.name: [], IN_PROCESS: []}
        cpu: list[float] = []
        for _ in range(repetitions):
            for name, arguments in ((Parley.name, ()), (IN_PROCESS, ("--in-process",))):
                with Parley(*arguments).start_in(server.environ, server.work) as running:
                    running.initialize()
                    running.run_short_turn()
                    conversation = running.open_followed()
                    before = running.cpu_seconds()
                    began, arrivals = running.run_turns([conversation], deltas_of(DELTAS))
                    rates[name].append(DELTAS / (max(arrivals.ended_at) - began))
                    if name == Parley.name:
                        cpu.append(running.cpu_seconds() - before)
    return [
        Row(
            what="process start to initialize response, relay",
            unit="ms",
            values={name: median(times) * 1000 for name, times in taken.items()},
            notes=(f'median of {STARTS}; {BARE} is a complete run of `python -c "import asyncio, msgspec"`',),
        ),
        Row(
            what="deltas through a relay",
            unit="/s",
            values={name: max(times) for name, times in rates.items()},
            notes=(f"{DELTAS:,} deltas; best of {repetitions}",),
        ),
        Row(
            what="CPU time of the relay per delta",
            unit="µs",
            values={Parley.name: min(cpu) / DELTAS * 1e6},
            notes=("user and system time of the relay process, without the resident server",),
        ),
    ]
