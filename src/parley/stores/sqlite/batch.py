"""Entries on their way into the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from parley.conversation.log import Entry
from parley.wire.ids import Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.sqlite.blobs import Cut

__all__ = ["AT_ONCE", "Batch", "pieces", "places", "values", "write_all"]

T = TypeVar("T")

SHORTEST: Final = 4096
"""Bytes; in what is shorter nothing is worth being kept apart."""

AT_ONCE: Final = 32
"""Rows in one statement: few enough for a statement for each number of them to be remembered."""

BYTES_AT_ONCE: Final = 64 * 1024
LONG: Final = BYTES_AT_ONCE // 4
"""What is as long is written by itself."""

_ROW_BYTES: Final = 64
"""What a row takes besides its body, about."""


class Batch:
    """Entries that are written together. Packing them needs no lock, writing them does."""

    __slots__ = ("_entries", "cuts", "first", "packed", "rows", "size")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.rows = len(entries)
        self.first = entries[0].seq if entries else None
        """The position of the first; None: there are no entries."""
        self.packed: list[tuple[int, float, str, bool, bytes]] = []
        self.cuts: list[tuple[int, Cut]] = []
        self.size = 0
        """In bytes, about, once they are packed."""

    def pack(self) -> None:
        """Encode them, and cut out and compress what is kept as a blob."""
        for entry in self._entries:
            body = entry.body
            if len(body) >= SHORTEST:
                body = self._cut(entry.seq, body)
            self.packed.append((entry.seq, entry.at, entry.type, entry.is_event, body))
            self.size += len(body) + _ROW_BYTES

    def _cut(self, seq: Seq, body: bytes) -> bytes:
        from parley.stores.sqlite.blobs import cut

        rest, cuts = cut(body)
        for one in cuts:
            self.cuts.append((seq, one))
            self.size += len(one.blob.data)
        return rest


def write_all(db: Connection, batches: Sequence[tuple[int, Batch]]) -> None:
    """Write these, each with the row of its conversation."""
    entries = [(row, *packed) for row, batch in batches for packed in batch.packed]
    cuts = [(row, seq, one) for row, batch in batches for seq, one in batch.cuts]
    _insert(db, "INSERT INTO entries", entries)
    _insert(db, "INSERT OR IGNORE INTO blobs", [one.blob for _, _, one in cuts])
    _insert(db, "INSERT INTO cuts", [(row, seq, one.offset, one.blob.hash) for row, seq, one in cuts])


def _insert(db: Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Only the last column may be long."""
    if long := [row for row in rows if len(row[-1]) >= LONG]:
        # SQLite caches the statement with the values that were bound last: bind none, so that a long text is freed.
        one = f"{into} SELECT {places(len(long[0]))} WHERE ?"
        db.executemany(one, ((*row, True) for row in long))
        db.execute(one, (*[None] * len(long[0]), False))
    for some in _light_pieces([row for row in rows if len(row[-1]) < LONG]):
        db.execute(f"{into} {values(len(some), len(some[0]))}", tuple(chain.from_iterable(some)))


def _light_pieces(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """As `pieces`; none of them holds very much."""
    for some in pieces(rows):
        begin = size = 0
        for place, row in enumerate(some):
            size += len(row[-1])
            if size > BYTES_AT_ONCE:
                yield some[begin:place]
                begin, size = place, len(row[-1])
        yield some[begin:]


def pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many at a time as one statement takes."""
    for begin in range(0, len(items), AT_ONCE):
        yield items[begin : begin + AT_ONCE]


@cache
def values(rows: int, columns: int) -> str:
    """Places for so many rows in a statement."""
    return f"VALUES {', '.join([f'({places(columns)})'] * rows)}"


@cache
def places(number: int) -> str:
    """Places for so many values in a statement."""
    return ", ".join("?" * number)
