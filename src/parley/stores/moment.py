"""Several statements that see the database as it is in one moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["one_moment"]


@contextmanager
def one_moment(db: Connection) -> Iterator[None]:
    """What is read in this block is as of its first statement; one statement alone needs no such block."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:  # some errors end it
            db.execute("ROLLBACK")
