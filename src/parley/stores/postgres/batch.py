"""Converts entries to columns, so that one statement can write the entries of many conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from parley.conversation.keys import key_of
from parley.conversation.log import Entry
from parley.stores.blob_sizes import MIN_BLOB_CHARACTERS
from parley.stores.blobs import Cut, cut
from parley.stores.postgres.rows import digest_of_key, searchable
from parley.stores.search import SEARCHED

__all__ = ["BLOB_COLUMNS", "Batch", "Shape", "arrays_of", "pack"]

IN_THREAD_BYTES: Final = 64 * 1024
"""The minimum total size, in bytes, of entries that are converted to column values in a thread. Compressing the
images in large entries would block the event loop.
"""


class Shape(NamedTuple):
    """The optional columns that a group of entries needs. They are the column of the keys, by which an entry can be
    found, and the columns for blobs.

    Optional columns that are empty for all entries are left out, because asyncpg takes time for each value.
    """

    has_keys: bool
    has_blobs: bool

    @property
    def entry_columns(self) -> dict[str, str]:
        """A mapping from the name of each column of the entries to the SQL type of the array parameter for this
        column.
        """
        keys = {"key": "bytea[]"} if self.has_keys else {}
        sizes = {"is_cut": "boolean[]", "size": "integer[]"} if self.has_blobs else {}
        return {**_ENTRY_COLUMNS, **keys, **sizes}


_ENTRY_COLUMNS: Final = {
    "conversation": "bigint[]",
    "seq": "bigint[]",
    "at": "double precision[]",
    "type": "bytea[]",
    "is_event": "boolean[]",
    "words": "text[]",
    "body": "bytea[]",
}
BLOB_COLUMNS: Final = {
    "conversation": "bigint[]",
    "seq": "bigint[]",
    "position": "bigint[]",
    "hash": "bytea[]",
    "data": "bytea[]",
}


class Batch:
    """Entries of one conversation that one statement writes."""

    __slots__ = ("cuts", "entries", "first", "packed", "rows", "size")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.rows = len(entries)
        self.first = entries[0].seq if entries else None
        """The position of the first entry; None if there are no entries."""
        self.size = sum(entry.size for entry in entries)
        """The approximate size of the entries in bytes."""
        self.packed: list[tuple[Any, ...]] | None = None
        """The column values of each entry, without the number of its conversation; None before `pack`."""
        self.cuts: list[tuple[int, Cut]] = []
        """The blobs that were cut out of the entries, each with the position of its entry."""

    def pack(self) -> None:
        """Convert the entries to column values, and extract their keys, searchable text and blobs. A second call
        has no effect.
        """
        if self.packed is None:
            cuts: list[tuple[int, Cut]] = []
            packed = [_columns(entry, cuts) for entry in self.entries]
            self.packed, self.cuts = packed, cuts


def _columns(entry: Entry, cuts: list[tuple[int, Cut]]) -> tuple[Any, ...]:
    body = whole = entry.body
    if len(body) >= MIN_BLOB_CHARACTERS:
        body, found = cut(body)
        cuts += ((entry.seq, one) for one in found)
    key = key_of(entry)
    return (
        entry.seq,
        entry.at,
        entry.type.encode(),
        entry.is_event,
        searchable(whole) if entry.is_event and entry.type in SEARCHED else None,
        body,
        None if key is None else digest_of_key(entry.type, key),
        body is not whole,
        len(whole),
    )


_KEY: Final = 7
"""The index of the key in the tuple that contains the column values of an entry."""
_IS_CUT: Final = 8
_SIZE: Final = 9


async def pack(batches: Iterable[Batch]) -> None:
    """Pack the batches that are not packed yet (`Batch.pack`). If the total size of these batches is at least
    `IN_THREAD_BYTES`, pack them in a thread.
    """
    unpacked = [batch for batch in batches if batch.packed is None]
    if sum(batch.size for batch in unpacked) >= IN_THREAD_BYTES:
        await asyncio.get_running_loop().run_in_executor(None, _pack_all, unpacked)
    else:
        _pack_all(unpacked)


def _pack_all(batches: Sequence[Batch]) -> None:
    for batch in batches:
        batch.pack()


def arrays_of(batches: Sequence[tuple[int, Batch]]) -> tuple[Shape, list[Sequence[Any]]]:
    """Return the set of optional columns that the entries need, and an array of values for each column of the
    entries and of their blobs.

    Each item of `batches` is the number of a conversation and a packed batch of its entries.
    """
    rows = [(number, *packed) for number, batch in batches for packed in batch.packed or ()]
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * (_SIZE + 1)
    blobs = [
        (number, seq, one.offset, one.blob.hash, one.blob.data)
        for number, batch in batches
        for seq, one in batch.cuts
    ]
    shape = Shape(any(columns[_KEY]), bool(blobs))
    arrays = columns[:_KEY]
    if shape.has_keys:
        arrays.append(columns[_KEY])
    if shape.has_blobs:
        arrays += (columns[_IS_CUT], columns[_SIZE], *zip(*blobs, strict=True))
    return shape, arrays
