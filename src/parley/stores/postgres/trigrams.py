"""Decides when a query uses the trigram indexes. With these indexes, PostgreSQL finds the messages and titles that
contain a given string without reading all messages and titles.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from parley.stores.postgres.driver import Connection
from parley.stores.postgres.rows import folded

__all__ = ["MAX_CANDIDATES", "can_use_index", "index_scans"]

MIN_INDEXED_CHARACTERS: Final = 3
"""The minimum length, in characters, of a string that can be searched for with a trigram index."""

MAX_CANDIDATES: Final = 5000
"""The number of matching messages and titles at which a query scans the messages and titles instead of using the
trigram index. A scan finds a frequent string quickly.
"""


async def can_use_index(db: Connection, text: str) -> bool:
    """Return whether the database has the trigram indexes and `text` is long enough for a trigram index."""
    if len(folded(text)) < MIN_INDEXED_CHARACTERS:
        return False
    return await db.fetchval("SELECT to_regclass('entries_by_words')") is not None


@asynccontextmanager
async def index_scans(db: Connection) -> AsyncIterator[None]:
    """Make PostgreSQL use the trigram indexes for the queries in the `with` block.

    PostgreSQL cannot estimate the number of matching rows, and might otherwise choose a slow scan of the table.
    """
    async with db.transaction():
        await db.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off")
        yield
