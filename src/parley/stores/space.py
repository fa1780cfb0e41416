"""Giving space back: what deleted conversations have left, blobs that nothing refers to, and empty pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["Freed", "left_empty", "remove_unused", "shrink", "unused"]

BLOBS_A_STEP: Final = 64
PAGES_A_STEP: Final = 1024
"""As much as keeps the lock short."""

_UNUSED: Final = "FROM blobs WHERE NOT EXISTS (SELECT 1 FROM cuts WHERE cuts.hash = blobs.hash)"


class Freed(Struct, frozen=True, kw_only=True):
    """Blobs that nothing refers to."""

    blobs: int
    bytes: int
    """What they take on disk."""


def unused(db: Connection) -> Freed:
    count, size = db.execute(f"SELECT count(*), coalesce(sum(length(data)), 0) {_UNUSED}").fetchone()
    return Freed(blobs=count, bytes=size)


def remove_unused(db: Connection) -> Freed:
    """Some of them; none: there are no more."""
    found = db.execute(f"SELECT hash, length(data) {_UNUSED} LIMIT {BLOBS_A_STEP}").fetchall()
    db.executemany("DELETE FROM blobs WHERE hash = ?", [(digest,) for digest, _ in found])
    return Freed(blobs=len(found), bytes=sum(size for _, size in found))


def left_empty(db: Connection, taken: Callable[[int], bool]) -> int:
    """Bytes that `shrink` would give back once the rest of what was deleted is removed, about."""
    deleted = [row for (row,) in db.execute("SELECT row FROM removed").fetchall() if not taken(row)]
    entries = "SELECT coalesce(sum(length(body)), 0) FROM entries WHERE row = ?"
    (page_size,) = db.execute("PRAGMA page_size").fetchone()
    size: int = _empty_pages(db) * page_size
    for row in deleted:
        size += db.execute(entries, (row,)).fetchone()[0]
    return size


def shrink(db: Connection) -> bool:
    """Give some empty pages back; whether there are more that can be."""
    before = _empty_pages(db)
    db.execute(f"PRAGMA incremental_vacuum({PAGES_A_STEP})").fetchall()
    return 0 < _empty_pages(db) < before


_INCREMENTAL: Final = 2


def _empty_pages(db: Connection) -> int:
    """None where somebody has changed the database so that it keeps them."""
    if db.execute("PRAGMA auto_vacuum").fetchone()[0] != _INCREMENTAL:
        return 0
    count: int = db.execute("PRAGMA freelist_count").fetchone()[0]
    return count
