"""Converts entries to rows of the database, and inserts many rows with few statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from parley.conversation.keys import key_of
from parley.conversation.log import Entry
from parley.stores.blob_sizes import MIN_BLOB_CHARACTERS
from parley.wire.ids import Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.blobs import Cut

__all__ = ["AT_ONCE", "Batch", "groups_of", "pieces", "placeholders", "values", "write_all"]

T = TypeVar("T")

AT_ONCE: Final = 32
"""The maximum number of rows that one statement writes. The number is small, so that SQLite can cache a prepared
statement for each possible number of rows.
"""

CONVERSATIONS_AT_ONCE: Final = 256
"""The maximum number of conversations in one query; a power of two. Each conversation needs up to two SQL
variables, and older releases of SQLite allow only 999 variables.
"""

BYTES_AT_ONCE: Final = 64 * 1024
LONG: Final = BYTES_AT_ONCE // 4
"""The minimum size, in bytes, of a value that is written with a separate statement."""

_ROW_BYTES: Final = 64
"""The approximate size of a row without its body, in bytes."""


class Batch:
    """Entries of one conversation that are written together.

    Packing the entries (`pack`) needs no lock. Writing the packed entries needs the write lock.
    """

    __slots__ = ("_entries", "cuts", "first", "packed", "rows", "size")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.rows = len(entries)
        self.first = entries[0].seq if entries else None
        """The position of the first entry; None if there are no entries."""
        self.packed: list[tuple[int, float, str, bool, str | None, bytes]] = []
        """The columns of the packed entries, without the row number of their conversation."""
        self.cuts: list[tuple[int, Cut]] = []
        self.size = 0
        """The approximate size of the packed entries in bytes."""

    def pack(self) -> None:
        """Encode the entries, extract their keys, and cut out and compress their blobs. Call this method once."""
        for entry in self._entries:
            body = entry.body
            if len(body) >= MIN_BLOB_CHARACTERS:
                body = self._cut(entry.seq, body)
            self.packed.append((entry.seq, entry.at, entry.type, entry.is_event, key_of(entry), body))
            self.size += len(body) + _ROW_BYTES

    def _cut(self, seq: Seq, body: bytes) -> bytes:
        from parley.stores.blobs import cut

        rest, cuts = cut(body)
        for one in cuts:
            self.cuts.append((seq, one))
            self.size += len(one.blob.data)
        return rest


def write_all(db: Connection, batches: Sequence[tuple[int, Batch]]) -> None:
    """Write packed batches to the database. Each item of `batches` is the row number of a conversation and a batch
    of its entries.
    """
    entries = [(row, *packed) for row, batch in batches for packed in batch.packed]
    _insert(db, "INSERT INTO entries (row, seq, at, type, is_event, key, body)", entries)
    if cuts := [(row, seq, one) for row, batch in batches for seq, one in batch.cuts]:
        _insert(db, "INSERT OR IGNORE INTO blobs", [one.blob for _, _, one in cuts])
        _insert(db, "INSERT INTO cuts", [(row, seq, one.offset, one.blob.hash) for row, seq, one in cuts])


def _insert(db: Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows with as few statements as possible. `into` is the beginning of the INSERT statement. Only the
    last value of a row may be long.
    """
    long = [row for row in rows if len(row[-1]) >= LONG]
    if long:
        # SQLite caches a statement together with the values that were bound last. Binding NULL frees a long value.
        one = f"{into} SELECT {placeholders(len(long[0]))} WHERE ?"
        db.executemany(one, ((*row, True) for row in long))
        db.execute(one, (*[None] * len(long[0]), False))
        rows = [row for row in rows if len(row[-1]) < LONG]
    for some in _light_pieces(rows):
        db.execute(f"{into} {values(len(some), len(some[0]))}", tuple(chain.from_iterable(some)))


def _light_pieces(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Split rows into pieces of at most `AT_ONCE` rows. In each piece, the values in the last column together have
    at most `BYTES_AT_ONCE` bytes.
    """
    for some in pieces(rows):
        begin = size = 0
        for place, row in enumerate(some):
            size += len(row[-1])
            if size > BYTES_AT_ONCE:
                yield some[begin:place]
                begin, size = place, len(row[-1])
        yield some[begin:]


def pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split a sequence into pieces of at most `AT_ONCE` items, one piece for each statement that writes rows."""
    for begin in range(0, len(items), AT_ONCE):
        yield items[begin : begin + AT_ONCE]


def groups_of(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split a sequence into groups of at most `CONVERSATIONS_AT_ONCE` items, one group for each query.

    The last item of a group is repeated until the length of the group is a power of two, so that there are few
    different statements. SQLite caches each different statement, and a statement with hundreds of values needs tens
    of kilobytes of memory.
    """
    for begin in range(0, len(items), CONVERSATIONS_AT_ONCE):
        some = [*items[begin : begin + CONVERSATIONS_AT_ONCE]]
        yield some + some[-1:] * ((1 << (len(some) - 1).bit_length()) - len(some))


@cache
def values(rows: int, columns: int) -> str:
    """Return a VALUES clause with placeholders for `rows` rows of `columns` columns."""
    return f"VALUES {', '.join([f'({placeholders(columns)})'] * rows)}"


@cache
def placeholders(number: int) -> str:
    """Return a string of `number` SQL placeholders, separated by commas."""
    return ", ".join("?" * number)
