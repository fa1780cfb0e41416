"""Measures the deltas per second that a program receives through the Python client `parley.client`."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

import parley
from bench.model import deltas_of
from bench.report import Row
from bench.servers import MODEL, Parley
from parley.client import ServerProcess, events

__all__ = ["through_client"]

DELTAS: Final = 100_000


class _Run(NamedTuple):
    per_second: float
    notifications: int


def through_client(base_url: str, *, repetitions: int) -> list[Row]:
    best = max(asyncio.run(_run(base_url)) for _ in range(repetitions))
    merged = (
        f"{DELTAS:,} deltas arrived in {best.notifications:,} notifications; deltas for a slow client are merged"
    )
    return [
        Row(
            what="deltas, received as typed events of parley.client",
            unit="/s",
            values={Parley.name: best.per_second},
            notes=(merged, f"best of {repetitions}"),
        )
    ]


async def _run(base_url: str) -> _Run:
    with Parley().home(base_url) as (environ, work):
        async with parley.connect(ServerProcess(env=environ, cwd=work)) as client:
            conversation = await client.create(model=MODEL, cwd=str(work))
            async with conversation.stream() as stream:
                await conversation.send("hello")  # warm up: the first turn loads the HTTP library
                await stream.turn()
                began = time.perf_counter()
                await conversation.send(deltas_of(DELTAS))
                notifications = 0
                async for event in stream:
                    if isinstance(event, events.AgentMessageDelta):
                        notifications += 1
                    elif isinstance(event, events.TaskComplete):
                        break
                return _Run(DELTAS / (time.perf_counter() - began), notifications)
