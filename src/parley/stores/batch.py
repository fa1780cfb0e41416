"""Entries on their way into the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from parley.conversation.log import Entry
from parley.wire.ids import Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.blobs import Cut

__all__ = ["Batch"]

SHORTEST: Final = 4096
"""Bytes; in what is shorter nothing is worth being kept apart."""

_ROW_BYTES: Final = 64
"""What a row takes besides its body, about."""


class Batch:
    """Entries that are written together. Packing them needs no lock, writing them does."""

    __slots__ = ("_cuts", "_entries", "_packed", "first", "rows", "size")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.rows = len(entries)
        self.first = entries[0].seq if entries else None
        """The position of the first; None: there are no entries."""
        self._packed: list[tuple[int, float, str, bool, bytes]] = []
        self._cuts: list[tuple[int, Cut]] = []
        self.size = 0
        """In bytes, about, once they are packed."""

    def pack(self) -> None:
        """Encode them, and cut out and compress what is kept as a blob."""
        for entry in self._entries:
            body = entry.body
            if len(body) >= SHORTEST:
                body = self._cut(entry.seq, body)
            self._packed.append((entry.seq, entry.at, entry.type, entry.is_event, body))
            self.size += len(body) + _ROW_BYTES

    def _cut(self, seq: Seq, body: bytes) -> bytes:
        from parley.stores.blobs import cut

        rest, cuts = cut(body)
        for one in cuts:
            self._cuts.append((seq, one))
            self.size += len(one.blob.data)
        return rest

    def write(self, db: Connection, row: int) -> None:
        db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", [(row, *packed) for packed in self._packed])
        if self._cuts:
            db.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", [one.blob for _, one in self._cuts])
            db.executemany(
                "INSERT INTO cuts VALUES (?, ?, ?, ?)",
                [(row, seq, one.offset, one.blob.hash) for seq, one in self._cuts],
            )
