"""Producers that append events to a store and wait for each acknowledgement, and the rows of their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from bench.report import Row
from bench.servers import Parley
from parley.conversation.log import Entry
from parley.ports.store import Lease, Store, Summary
from parley.wire.ids import ConversationId, Seq

__all__ = ["BODY", "PRODUCERS", "SECONDS", "Appended", "append_events", "names", "rows_of", "summary"]

PRODUCERS: Final = (1, 100)
SECONDS: Final = 3.0
BODY: Final = b'{"type":"agent_message","message":"%b"}' % (b"Some words of an agent. " * 8)


class Appended(NamedTuple):
    """The result of one run."""

    a_second: float
    """The number of durable events per second."""
    p50: float
    """The median time from the call of `append` to its acknowledgement, in seconds."""
    p99: float
    """The 99th percentile of the same time, in seconds."""


async def append_events(opened: Store, producers: int) -> tuple[Appended, list[Lease]]:
    """Append events for `SECONDS` seconds. Return the result and the leases of the conversations."""
    leases: list[Lease] = []
    for name in names(producers):
        await opened.create(name, [], summary(0.0))
        leases.append(await opened.acquire(name, address=""))
    began = time.perf_counter()
    taken = await asyncio.gather(*(_produce(opened, lease, until=began + SECONDS) for lease in leases))
    ended = time.perf_counter()
    seconds = sorted(one for each in taken for one in each)
    rate = len(seconds) / (ended - began)
    return Appended(rate, median(seconds), seconds[len(seconds) * 99 // 100]), leases


def names(producers: int) -> list[ConversationId]:
    """Return the ids of the conversations of producers."""
    return [ConversationId(f"00000000-0000-4000-8000-{number:012}") for number in range(producers)]


async def _produce(opened: Store, lease: Lease, *, until: float) -> list[float]:
    taken: list[float] = []
    seq, now = lease.last, time.perf_counter()
    while now < until:
        seq = Seq(seq + 1)
        await opened.append(lease, [Entry(seq, now, "agent_message", True, BODY)], summary(now))
        before, now = now, time.perf_counter()
        taken.append(now - before)
    return taken


def summary(updated_at: float) -> Summary:
    """Return the summary of a conversation."""
    return Summary(title="A title", cwd="/work", model="gpt-5", state="running", updated_at=updated_at)


def rows_of(
    what: str,
    producers: int,
    runs: Sequence[Appended],
    baseline: str,
    bare: Sequence[float],
    *,
    share: float | None,
    notes: tuple[str, ...] = (),
) -> list[Row]:
    """Return the rows of the best run and of the best rate of a baseline, which writes the same rows.

    `share` is the minimum rate as a share of the rate of the baseline; None if there is no budget.
    """
    run, most = max(runs), max(bare)
    who = "1 producer" if producers == 1 else f"{producers} producers"
    return [
        Row(
            what=f"{what}, {who}",
            unit="/s",
            values={Parley.name: run.a_second, baseline: most},
            budget=None if share is None else f"≥ {share} × {baseline}",
            kept=None if share is None else run.a_second >= share * most,
            notes=(
                f"{run.a_second / most:.2f} × {baseline}, which writes the same rows, {producers} at a time",
                f"acknowledged after {run.p50 * 1000:.2f} ms (p50) and {run.p99 * 1000:.2f} ms (p99);"
                f" best of {len(runs)}",
                *notes,
            ),
        ),
        Row(what=f"{what}, {who}, acknowledgement, p50", unit="ms", values={Parley.name: run.p50 * 1000}),
    ]
