"""Producers that append events to a store and wait for each acknowledgement."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Final, NamedTuple

from parley.conversation.log import Entry
from parley.ports.store import Lease, Store, Summary
from parley.wire.ids import ConversationId, Seq

__all__ = ["BODY", "PRODUCERS", "SECONDS", "Appended", "append_events", "names", "summary", "who"]

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


def who(producers: int) -> str:
    """Return a number of producers in words."""
    return "1 producer" if producers == 1 else f"{producers} producers"
