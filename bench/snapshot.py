"""How long a client waits for the past of a long conversation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from bench.homes import keep_long
from bench.pipe import Gone
from bench.report import Row
from bench.servers import Parley, ParleyRunning

__all__ = ["EVENT", "EVENTS", "snapshot"]

EVENTS: Final = 100_000
EVENT: Final = b'"type":"agent_message"'
SNAPSHOT_MS: Final = 100


def snapshot(base_url: str, *, repetitions: int) -> list[Row]:
    """From the request to the last byte of `initial_state`; no peer has anything like it."""
    best: dict[bool, float] = {}
    server = Parley()
    with server.home(base_url) as (environ, work):
        conversation = keep_long(Path(environ[server.home_variable]), messages=EVENTS)
        with server.start_in(environ, work) as running:
            assert isinstance(running, ParleyRunning)
            running.initialize()
            stream, _ = running.stream(conversation, event_meta=True)  # from here on it is in memory
            running.pause(stream)
            for _ in range(repetitions):
                for event_meta in (True, False):
                    began = time.perf_counter()
                    stream, state = running.stream(conversation, event_meta=event_meta)
                    took = time.perf_counter() - began
                    running.pause(stream)
                    if (shown := state.count(EVENT)) != EVENTS:
                        raise Gone(f"the snapshot has {shown:,} of {EVENTS:,} events")
                    best[event_meta] = min(took, best.get(event_meta, took))
    return [
        Row(
            what=f"initial_state of {EVENTS:,} events" + ("" if event_meta else ", without event_meta"),
            unit="ms",
            values={Parley.name: best[event_meta] * 1000},
            budget=f"≤ {SNAPSHOT_MS} ms",
            kept=best[event_meta] * 1000 <= SNAPSHOT_MS,
            notes=(f"to the last byte; best of {repetitions}",),
        )
        for event_meta in (True, False)
    ]
