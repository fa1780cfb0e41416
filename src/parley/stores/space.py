"""Giving space back: blobs that nothing refers to, and the pages that were left empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["Freed", "remove_unused", "shrink", "unused"]

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


def shrink(db: Connection) -> bool:
    """Give some empty pages back; whether there are more."""
    db.execute(f"PRAGMA incremental_vacuum({PAGES_A_STEP})").fetchall()
    return bool(db.execute("PRAGMA freelist_count").fetchone()[0])
