"""Measures the time to the snapshot of a long conversation that the server has loaded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from bench.homes import keep_long
from bench.pipe import Gone
from bench.report import Row
from bench.servers import Parley, ParleyRunning

__all__ = ["EVENT", "EVENTS", "SNAPSHOT_MS", "snapshot"]

EVENTS: Final = 100_000
EVENT: Final = b'"type":"agent_message"'
SNAPSHOT_MS: Final = 100


def snapshot(base_url: str, *, repetitions: int) -> list[Row]:
    """Measure the times from the request to the first and to the last byte of `initial_state`. The peers have no
    snapshots."""
    first: dict[bool, float] = {}
    last: dict[bool, float] = {}
    server = Parley()
    with server.home(base_url) as (environ, work):
        conversation = keep_long(Path(environ[server.home_variable]), messages=EVENTS)
        with server.start_in(environ, work) as running:
            assert isinstance(running, ParleyRunning)
            running.initialize()
            stream, _ = running.stream(conversation, event_meta=True)  # loads the conversation
            running.pause(stream)
            for _ in range(repetitions):
                for event_meta in (True, False):
                    began = time.perf_counter()
                    stream = running.begin_stream(conversation, event_meta=event_meta)
                    begun = time.perf_counter() - began
                    state = running.snapshot()
                    took = time.perf_counter() - began
                    running.pause(stream)
                    if (shown := state.count(EVENT)) != EVENTS:
                        raise Gone(f"the snapshot has {shown:,} of {EVENTS:,} events")
                    first[event_meta] = min(begun, first.get(event_meta, begun))
                    last[event_meta] = min(took, last.get(event_meta, took))
    rows: list[Row] = []
    for event_meta in (True, False):
        what = f"initial_state of {EVENTS:,} events" + ("" if event_meta else ", without event_meta")
        rows += [
            Row(
                what=f"{what}, first byte",
                unit="ms",
                values={Parley.name: first[event_meta] * 1000},
                budget=f"≤ {SNAPSHOT_MS} ms",
                kept=first[event_meta] * 1000 <= SNAPSHOT_MS,
                notes=(f"best of {repetitions}",),
            ),
            Row(
                what=f"{what}, last byte",
                unit="ms",
                values={Parley.name: last[event_meta] * 1000},
                notes=(f"the server reads older entries from disk while it sends them; best of {repetitions}",),
            ),
        ]
    return rows
