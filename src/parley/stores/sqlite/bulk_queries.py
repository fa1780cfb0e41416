"""The SQL of the most frequent writes, for many conversations at once: granting leases and appending entries.

Each statement releases the interpreter lock and has to acquire it again, which takes long while the event loop is
busy. So the number of statements does not depend on the number of conversations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from parley.errors import LeaseLost, ParleyError, StoreFailed, UnknownConversation
from parley.ports.store import Lease, Owner, Summary
from parley.stores.sqlite.batch import Batch, pieces, placeholders, values, write_all
from parley.stores.sqlite.queries import NEWEST, OWNER, SUMMARY, columns_of
from parley.wire.ids import ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["Append", "LeaseRequest", "append_entries", "grant_leases"]

DAMAGED: Final = -1
"""The value in place of a column that is not a number. The end of the log is then unknown, and the conversation
can only be deleted.
"""


class LeaseRequest(NamedTuple):
    """A lease to be granted. This process already holds its lock."""

    row: int
    conversation_id: ConversationId
    owner: Owner


class Append(NamedTuple):
    """Entries to be appended to a conversation under a lease."""

    row: int
    epoch: int
    batch: Batch
    summary: Summary
    owner: Owner


def grant_leases(db: Connection, wanted: Sequence[LeaseRequest]) -> list[Lease | ParleyError]:
    """Grant leases with new epochs, so that writes of earlier holders fail."""
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
            changes.append((row, epoch, *_columns(owner)))
    if changes:
        _update(db, f"epoch, {OWNER}", changes)
        db.execute("UPDATE epochs SET last = ?", (epoch,))
    return taken


def append_entries(db: Connection, additions: Sequence[Append]) -> list[ParleyError | None]:
    """Append entries and return an error or None for each append.

    An append that leaves the conversation idle also removes the owner, so that releasing the lease needs no write.
    """
    heads, newest = _heads(db, {one.row for one in additions})
    refused: list[ParleyError | None] = []
    batches: list[tuple[int, Batch]] = []
    changes: dict[int, tuple[Any, ...]] = {}
    for row, epoch, batch, summary, owner in additions:
        why = _refusal(heads.get(row), epoch, batch.first)
        refused.append(why)
        if why is None:
            last = heads[row].last + batch.rows
            heads[row] = _Head(epoch, last)
            named = (None, None, None, None) if summary.state == "idle" else _columns(owner)
            *texts, at = columns_of(summary, newest)
            newest = at if newest is None else max(newest, at)
            changes[row] = (row, last, *named, *texts, at)
            batches.append((row, batch))
    if changes:
        _update(db, f"last, {OWNER}, {SUMMARY}", list(changes.values()))
        write_all(db, batches)
    return refused


def _columns(owner: Owner) -> tuple[str, int, str, float]:
    """Return the columns of `OWNER`."""
    return owner.node, owner.pid, owner.address, owner.since


class _Head(NamedTuple):
    epoch: int
    last: int


def _refusal(head: _Head | None, epoch: int, first: Seq | None) -> ParleyError | None:
    if head is None or head.epoch != epoch or (first is not None and first <= head.last):
        return LeaseLost()
    if first is not None and first != head.last + 1:
        return StoreFailed("an earlier append was not written")
    return None


def _heads(db: Connection, rows: Collection[int]) -> tuple[dict[int, _Head], float | None]:
    """Return the heads of the rows that exist, and the time of the newest activity in any conversation.

    The query returns all heads in one value, because fetching each row takes the interpreter lock.
    """
    found: dict[int, _Head] = {}
    newest: float | None = None
    for some in pieces(list(rows)):
        told, newest = db.execute(
            f"SELECT group_concat(row || ' ' || {_number('epoch')} || ' ' || {_number('last')}), {NEWEST}"
            f" FROM conversations WHERE row IN ({placeholders(len(some))})",
            some,
        ).fetchone()
        for one in told.split(",") if told else ():
            row, epoch, last = map(int, one.split())
            found[row] = _Head(epoch, last)
    return found, newest if isinstance(newest, float) else None


def _number(column: str) -> str:
    return f"iif(typeof({column}) = 'integer', {column}, {DAMAGED})"


def _update(db: Connection, columns: str, changes: Sequence[tuple[Any, ...]]) -> None:
    """Set columns of conversations; each change begins with the row."""
    new = ", ".join(f"new.{column}" for column in columns.split(", "))
    for some in pieces(changes):
        db.execute(
            f"WITH new (row, {columns}) AS ({values(len(some), len(some[0]))})"
            f" UPDATE conversations SET ({columns}) = ({new}) FROM new WHERE conversations.row = new.row",
            tuple(chain.from_iterable(some)),
        )
