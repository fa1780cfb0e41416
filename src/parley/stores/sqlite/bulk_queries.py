"""What is written most, of many conversations in as few statements as of one: leases that are taken, and entries.

Each statement gives the interpreter away and has to get it back, which takes long where the loop is busy: a
hundred turns that end at once would wait a thousand times.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from parley.errors import LeaseLost, ParleyError, StoreFailed, UnknownConversation
from parley.ports.store import Lease, Owner, Summary
from parley.stores.sqlite.batch import Batch, pieces, places, values, write_all
from parley.stores.sqlite.queries import NEWEST, SUMMARY, columns_of
from parley.wire.ids import ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["Append", "LeaseRequest", "append_entries", "grant_leases"]

DAMAGED: Final = -1
"""Stands for a number that is none: where the log ends nobody knows then, and it can only be deleted."""


class LeaseRequest(NamedTuple):
    """A lease that is wanted; its lock is ours by now."""

    row: int
    conversation_id: ConversationId
    owner: Owner


class Append(NamedTuple):
    """Entries of a conversation that we have the lease of."""

    row: int
    epoch: int
    batch: Batch
    summary: Summary
    owner: Owner


def grant_leases(db: Connection, wanted: Sequence[LeaseRequest]) -> list[Lease | ParleyError]:
    """Fences everybody who had one of these leases before."""
    heads, _ = _heads(db, [one.row for one in wanted])
    taken: list[Lease | ParleyError] = []
    changes: list[tuple[Any, ...]] = []
    (epoch,) = db.execute("SELECT last FROM epochs").fetchone()
    for row, conversation_id, owner in wanted:
        if row not in heads:
            taken.append(UnknownConversation(conversation_id))
        else:
            epoch += 1
            taken.append(Lease(conversation_id=conversation_id, epoch=epoch, last=Seq(heads[row].last)))
            changes.append((row, epoch, owner.pid, owner.address, owner.since))
    if changes:
        _update(db, "epoch, owner_pid, owner_address, owner_since", changes)
        db.execute("UPDATE epochs SET last = ?", (epoch,))
    return taken


def append_entries(db: Connection, additions: Sequence[Append]) -> list[ParleyError | None]:
    """Where nothing goes on behind it, it names no owner: giving the lease back then needs no write."""
    heads, newest = _heads(db, {one.row for one in additions})
    refused: list[ParleyError | None] = []
    batches: list[tuple[int, Batch]] = []
    changes: dict[int, tuple[Any, ...]] = {}
    for row, epoch, batch, summary, owner in additions:
        why = _why_not(heads.get(row), epoch, batch.first)
        refused.append(why)
        if why is None:
            last = heads[row].last + batch.rows
            heads[row] = _Head(epoch, last)
            named = (None, None, None) if summary.state == "idle" else (owner.pid, owner.address, owner.since)
            *texts, at = columns_of(summary, newest)
            newest = at if newest is None else max(newest, at)
            changes[row] = (row, last, *named, *texts, at)
            batches.append((row, batch))
    if changes:
        _update(db, f"last, owner_pid, owner_address, owner_since, {SUMMARY}", list(changes.values()))
        write_all(db, batches)
    return refused


class _Head(NamedTuple):
    epoch: int
    last: int


def _why_not(head: _Head | None, epoch: int, first: Seq | None) -> ParleyError | None:
    if head is None or head.epoch != epoch or (first is not None and first <= head.last):
        return LeaseLost()
    if first is not None and first != head.last + 1:
        return StoreFailed("what comes before it was not written")
    return None


def _heads(db: Connection, rows: Collection[int]) -> tuple[dict[int, _Head], float | None]:
    """The heads of the rows that exist, and when the newest conversation of all was active.

    The heads come in one value, because each row of an answer is fetched by itself.
    """
    found: dict[int, _Head] = {}
    newest: float | None = None
    for some in pieces(list(rows)):
        told, newest = db.execute(
            f"SELECT group_concat(row || ' ' || {_number('epoch')} || ' ' || {_number('last')}), {NEWEST}"
            f" FROM conversations WHERE row IN ({places(len(some))})",
            some,
        ).fetchone()
        for one in told.split(",") if told else ():
            row, epoch, last = map(int, one.split())
            found[row] = _Head(epoch, last)
    return found, newest if isinstance(newest, float) else None


def _number(column: str) -> str:
    return f"iif(typeof({column}) = 'integer', {column}, {DAMAGED})"


def _update(db: Connection, columns: str, changes: Sequence[tuple[Any, ...]]) -> None:
    """Set these columns; each change begins with its row."""
    new = ", ".join(f"new.{column}" for column in columns.split(", "))
    for some in pieces(changes):
        db.execute(
            f"WITH new (row, {columns}) AS ({values(len(some), len(some[0]))})"
            f" UPDATE conversations SET ({columns}) = ({new}) FROM new WHERE conversations.row = new.row",
            tuple(chain.from_iterable(some)),
        )
