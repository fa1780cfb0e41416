"""Measures how fast the store makes events durable."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from bench.appending import BODY, PRODUCERS, SECONDS, Appended, append_events, rows_of, summary
from bench.report import BARE, Row
from bench.servers import ON_DISK
from parley.stores.sqlite.database import open_database, open_locks
from parley.stores.sqlite.store import SqliteStore

__all__ = ["store", "sync_seconds"]

SHARE: Final = {1: None, 100: 0.5}
"""The minimum rate by the number of producers, as a share of the rate of the baseline. None means that there is no
budget."""
SYNCS: Final = 200
SYNCED: Final = 4096
"""The size of the data in each measured sync, in bytes: one page of the database."""
CHECKPOINT_PAGES: Final = 2000
"""The size of the write-ahead log at which the baseline checkpoints the database, in pages. The store uses the same
size, about 8 MB."""


def store(*, repetitions: int) -> list[Row]:
    """Append events of about 200 bytes for `SECONDS` seconds. The best run counts.

    The store writes events that wait at the same time in one transaction.
    """
    with tempfile.TemporaryDirectory(prefix="parley-bench-", dir=ON_DISK) as directory:
        sync_ms = sync_seconds(Path(directory, "synced")) * 1000
        rows: list[Row] = []
        for producers in PRODUCERS:
            runs, bare = [], []
            for number in range(repetitions):
                runs.append(asyncio.run(_run(Path(directory, f"{producers}-{number}"), producers)))
                bare.append(_bare(Path(directory, f"{producers}-{number}-bare"), producers))
            note = f"one fdatasync of {SYNCED} bytes takes {sync_ms:.2f} ms"
            rows += rows_of("durable events", producers, runs, BARE, bare, share=SHARE[producers], notes=(note,))
    return rows


async def _run(home: Path, producers: int) -> Appended:
    opened = SqliteStore(str(home))
    appended, _ = await append_events(opened, producers)
    await opened.close()
    return appended


def _bare(home: Path, producers: int) -> float:
    """Write the same rows with SQLite alone, in one thread. Each transaction contains one event of each producer.
    Return the number of events per second."""
    locks = open_locks(str(home))
    with locks.lock:
        opened = open_database(locks)
    try:
        db = opened.writer
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        columns = [(row, f"{row}", *_shown(0.0)) for row in range(1, producers + 1)]
        db.executemany(
            "INSERT INTO conversations (row, id, last, archived, title, cwd, model, state, updated_at)"
            " VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?)",
            columns,
        )
        began = now = time.perf_counter()
        seq = 0
        while now < began + SECONDS:
            seq += 1
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "UPDATE conversations SET last = ?, title = ?, cwd = ?, model = ?, state = ?, updated_at = ?"
                " WHERE row = ? AND last = ?",
                [(seq, *_shown(now), row, seq - 1) for row in range(1, producers + 1)],
            )
            db.executemany(
                "INSERT INTO entries (row, seq, at, type, is_event, body)"
                " VALUES (?, ?, ?, 'agent_message', TRUE, ?)",
                [(row, seq, now, BODY) for row in range(1, producers + 1)],
            )
            db.execute("COMMIT")
            now = time.perf_counter()
        return seq * producers / (now - began)
    finally:
        opened.close()
        opened.lease_locks.close()


def _shown(updated_at: float) -> tuple[str, str, str, str, float]:
    shown = summary(updated_at)
    return shown.title, shown.cwd, shown.model, shown.state, shown.updated_at


def sync_seconds(path: Path) -> float:
    """Write `SYNCED` bytes and sync them, `SYNCS` times. Return the median time in seconds."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        taken = []
        for number in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(fd, bytes(SYNCED), number * SYNCED)
            os.fdatasync(fd)
            taken.append(time.perf_counter() - began)
        return median(taken)
    finally:
        os.close(fd)
