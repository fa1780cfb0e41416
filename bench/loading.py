"""Measures the time to read a long conversation on a server that has not loaded the conversation yet."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from bench.homes import keep_long
from bench.pipe import Gone
from bench.report import BARE, Row
from bench.servers import Parley, ParleyRunning
from bench.snapshot import EVENT, EVENTS, SNAPSHOT_MS
from parley.stores.sqlite.files import DATABASE

__all__ = ["loading"]

RATIO: Final = 8
LAST_PAGE: Final = 100


def loading(base_url: str, *, repetitions: int) -> list[Row]:
    """Measure the times on a server that has just started. The baseline only fetches the rows with `sqlite3`."""
    begun, streamed, read, bare = [], [], [], []
    server = Parley()
    with server.home(base_url) as (environ, work):
        home = Path(environ[server.home_variable])
        conversation = keep_long(home, messages=EVENTS)
        last = len(_rows(home))
        for _ in range(repetitions):
            bare.append(_bare(home, last))
            with server.start_in(environ, work) as running:
                assert isinstance(running, ParleyRunning)
                first, last_byte = _stream(running, conversation)
                begun.append(first)
                streamed.append(last_byte)
            with server.start_in(environ, work) as running:
                assert isinstance(running, ParleyRunning)
                read.append(_read(running, conversation, last))
    ratio = min(streamed) / min(bare)
    return [
        Row(
            what=f"initial_state of {EVENTS:,} events, not loaded, first byte",
            unit="ms",
            values={Parley.name: min(begun) * 1000},
            budget=f"≤ {SNAPSHOT_MS} ms",
            kept=min(begun) * 1000 <= SNAPSHOT_MS,
            notes=(f"first call of a new server; best of {repetitions}",),
        ),
        Row(
            what=f"initial_state of {EVENTS:,} events, not loaded, last byte",
            unit="ms",
            values={Parley.name: min(streamed) * 1000, BARE: min(bare) * 1000},
            budget=f"≤ {RATIO} × {BARE}",
            kept=ratio <= RATIO,
            notes=(
                f"first call of a new server; best of {repetitions}; {ratio:.1f} × {BARE}",
                f"{BARE} only fetches the {last:,} rows with sqlite3",
            ),
        ),
        Row(
            what=f"last {LAST_PAGE} entries of {EVENTS:,} events, not loaded",
            unit="ms",
            values={Parley.name: min(read) * 1000},
            notes=(f"one call of conversationRead; best of {repetitions}",),
        ),
    ]


def _stream(running: ParleyRunning, conversation: str) -> tuple[float, float]:
    """Return the times from `conversationStream` to the first and to the last byte of `initial_state`, in
    seconds."""
    running.initialize()
    began = time.perf_counter()
    running.begin_stream(conversation, event_meta=True)
    first = time.perf_counter() - began
    state = running.snapshot()
    took = time.perf_counter() - began
    if (shown := state.count(EVENT)) != EVENTS:
        raise Gone(f"the snapshot has {shown:,} of {EVENTS:,} events")
    return first, took


def _read(running: ParleyRunning, conversation: str, last: int) -> float:
    running.initialize()
    began = time.perf_counter()
    answer = running.tool("conversationRead", {"conversation_id": conversation, "after": last - LAST_PAGE})
    took = time.perf_counter() - began
    if (end := answer["structuredContent"]["seq"]) != last:
        raise Gone(f"the last page ends at {end:,}, the log at {last:,}")
    return took


def _bare(home: Path, last: int) -> float:
    began = time.perf_counter()
    found = _rows(home)
    took = time.perf_counter() - began
    assert len(found) == last
    return took


def _rows(home: Path) -> list[Any]:
    db = sqlite3.connect(home / DATABASE)
    try:
        return db.execute("SELECT seq, at, type, is_event, body FROM entries WHERE row = 1 ORDER BY seq").fetchall()
    finally:
        db.close()
