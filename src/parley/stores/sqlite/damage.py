"""Reads the rows that are still readable in a damaged database.

In SQLite, a statement fails at the first damaged page. If a query for all conversations fails because of damage,
the callers repeat the query for each conversation in `known_conversations`. The indexes also contain the ids, so a
conversation with a damaged row is still listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from parley.errors import Unreadable
from parley.wire.ids import ConversationId

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = [
    "KnownConversation",
    "fetch_around_damage",
    "fetch_readable",
    "is_damage",
    "known_conversations",
    "unreadable_if_damaged",
]

SCANS: Final = (
    "SELECT row, id, archived, updated_at FROM conversations INDEXED BY conversations_by_activity"
    " ORDER BY archived {0}, updated_at {0}, id {0}",
    "SELECT row, id, NULL, NULL FROM conversations INDEXED BY sqlite_autoindex_conversations_1 ORDER BY id {0}",
    "SELECT row, id, archived, updated_at FROM conversations NOT INDEXED ORDER BY row {0}",
)
"""Queries that find conversations through different indexes. `{0}` is replaced with the direction of the scan. Each
query runs in both directions, because a scan ends at the first damaged page.
"""


class KnownConversation(Struct, frozen=True):
    """A conversation that was found in the table `conversations` or in one of its indexes."""

    row: int
    id: ConversationId
    archived: bool
    updated_at: float


def is_damage(error: BaseException) -> bool:
    """Return whether an SQLite error means that the database is damaged."""
    import sqlite3  # imported here: start-up does not need SQLite

    if not isinstance(error, sqlite3.DatabaseError):
        return False
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    # An overflow page that points beyond the end of the file is reported as an I/O error.
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or code == sqlite3.SQLITE_IOERR_SHORT_READ


@contextmanager
def unreadable_if_damaged(conversation_id: ConversationId) -> Iterator[None]:
    """If an error in the `with` block means that the database is damaged, convert the error to `Unreadable` with
    the given conversation id.
    """
    try:
        yield
    except Exception as error:
        if is_damage(error):
            raise Unreadable(conversation_id, f"the database is damaged ({error})") from error
        raise


def fetch_readable(db: Connection, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run the query `sql` with the parameters `values`. Return the rows that precede the first damaged page; all
    rows if no page is damaged.
    """
    found: list[tuple[Any, ...]] = []
    try:
        found.extend(db.execute(sql, values))
    except Exception as error:
        if not is_damage(error):
            raise
    return found


def fetch_around_damage(
    db: Connection, sql: str, values: Sequence[Any], *, instead: str = "NOT INDEXED"
) -> list[tuple[Any, ...]]:
    """Run the query `sql` with the parameters `values`, and return its rows.

    `sql` contains the placeholder `{}`, which is first replaced with nothing. If the query fails because of damage,
    run the query again with `instead` in place of `{}`. The default of `instead` forces a table scan.
    """
    try:
        return db.execute(sql.format(""), values).fetchall()
    except Exception as error:
        if not is_damage(error):
            raise
        return db.execute(sql.format(instead), values).fetchall()


def known_conversations(db: Connection) -> list[KnownConversation]:
    """Return all conversations that are found in a readable page of the table `conversations` or of one of its
    indexes. A conversation whose time of activity is unreadable gets the time 0.
    """
    found: dict[int, KnownConversation] = {}
    for scan in SCANS:
        for direction in ("ASC", "DESC"):
            for row, name, archived, updated_at in fetch_readable(db, scan.format(direction)):
                before = found.get(row)
                if isinstance(name, str) and (before is None or type(updated_at) is float):
                    at = updated_at if type(updated_at) is float else 0.0
                    found[row] = KnownConversation(row, ConversationId(name), bool(archived), at)
    # A row between two damaged pages of the table can be found only by its row number.
    last = max([*found, *(seq for (seq,) in fetch_readable(db, _LAST_ROW) if isinstance(seq, int))], default=0)
    for row in range(1, last + 1):
        if row not in found:
            for name, archived, updated_at in fetch_readable(db, _ONE, (row,)):
                if isinstance(name, str):
                    at = updated_at if type(updated_at) is float else 0.0
                    found[row] = KnownConversation(row, ConversationId(name), bool(archived), at)
    return list(found.values())


_LAST_ROW: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'conversations'"
_ONE: Final = "SELECT id, archived, updated_at FROM conversations WHERE row = ?"
