"""Entries as columns, ready to be written with one statement for many conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from parley.conversation.keys import key_of
from parley.conversation.log import Entry
from parley.stores.blobs import SHORTEST, Cut, cut
from parley.stores.postgres.rows import digest_of_key, searchable
from parley.stores.search import SEARCHED

__all__ = ["BLOBS", "ENTRIES", "Batch", "blob_arrays", "entry_arrays", "pack"]

IN_THREAD_BYTES: Final = 64 * 1024
"""The size of entries from which they are packed in a thread, in bytes. Compressing images would block the event
loop.
"""

ENTRIES: Final = (
    "bigint[], bigint[], double precision[], bytea[], boolean[], boolean[], integer[], bytea[], text[], bytea[]"
)
"""The types of the arrays that `entry_arrays` returns."""

BLOBS: Final = "bigint[], bigint[], bigint[], bytea[], bytea[]"
"""The types of the arrays that `blob_arrays` returns."""


class Batch:
    """Entries of one conversation that are written together."""

    __slots__ = ("cuts", "entries", "first", "packed", "rows", "size")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.rows = len(entries)
        self.first = entries[0].seq if entries else None
        """The position of the first entry; None if there are no entries."""
        self.size = sum(entry.size for entry in entries)
        """The approximate size of the entries in bytes."""
        self.packed: list[tuple[Any, ...]] | None = None
        """The columns of the entries, without the number of their conversation; None before `pack`."""
        self.cuts: list[tuple[int, Cut]] = []
        """The blobs of the entries, each with the position of its entry."""

    def pack(self) -> None:
        """Encode the entries, and find their keys, texts and blobs. Doing this again has no effect."""
        if self.packed is None:
            cuts: list[tuple[int, Cut]] = []
            packed = [_columns(entry, cuts) for entry in self.entries]
            self.packed, self.cuts = packed, cuts


def _columns(entry: Entry, cuts: list[tuple[int, Cut]]) -> tuple[Any, ...]:
    body = whole = entry.body
    if len(body) >= SHORTEST:
        body, found = cut(body)
        cuts += ((entry.seq, one) for one in found)
    key = key_of(entry)
    return (
        entry.seq,
        entry.at,
        entry.type.encode(),
        entry.is_event,
        body is not whole,
        len(whole),
        None if key is None else digest_of_key(entry.type, key),
        searchable(whole) if entry.is_event and entry.type in SEARCHED else None,
        body,
    )


async def pack(batches: Iterable[Batch]) -> None:
    """Pack batches, in a thread if they are large."""
    unpacked = [batch for batch in batches if batch.packed is None]
    if sum(batch.size for batch in unpacked) >= IN_THREAD_BYTES:
        await asyncio.get_running_loop().run_in_executor(None, _pack_all, unpacked)
    else:
        _pack_all(unpacked)


def _pack_all(batches: Sequence[Batch]) -> None:
    for batch in batches:
        batch.pack()


_COLUMNS: Final = 10


def entry_arrays(batches: Iterable[tuple[int, Batch]]) -> list[Sequence[Any]]:
    """Return an array for each column of the entries. Each batch has the number of its conversation."""
    rows = [(number, *packed) for number, batch in batches for packed in batch.packed or ()]
    return list(zip(*rows, strict=True)) if rows else [()] * _COLUMNS


def blob_arrays(batches: Iterable[tuple[int, Batch]]) -> list[Sequence[Any]] | None:
    """Return an array for each of: the conversation, the position, the offset, the hash and the data of blobs.

    Return None if there are no blobs.
    """
    rows = [
        (number, seq, one.offset, one.blob.hash, one.blob.data)
        for number, batch in batches
        for seq, one in batch.cuts
    ]
    return list(zip(*rows, strict=True)) if rows else None
