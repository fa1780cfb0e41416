"""The SQL for the most frequent writes: granting leases and appending entries.

Executing any SQL statement releases the interpreter lock, and acquiring the lock again is slow while the event loop
is busy. Therefore, each statement of this module handles the requests for many conversations at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from parley.errors import LeaseLost, ParleyError, StoreFailed, UnknownConversation
from parley.ports.store import Lease, Owner, Summary
from parley.stores.sqlite.batch import Batch, pieces, placeholders, values, write_all
from parley.stores.sqlite.columns import NEWEST, OWNER, SUMMARY, columns_of
from parley.wire.ids import ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["Append", "LeaseRequest", "append_entries", "grant_leases"]

DAMAGED: Final = -1
"""The value that queries return for a damaged epoch or last position, that is, if the stored value is not an
integer. The conversation can then only be deleted, because the end of its log is unknown.
"""


class LeaseRequest(NamedTuple):
    """A request to grant a lease. This process must already hold the lock of the lease."""

    row: int
    conversation_id: ConversationId
    owner: Owner


class Append(NamedTuple):
    """A request to append entries to a conversation under a lease, and to replace its summary."""

    row: int
    epoch: int
    batch: Batch
    summary: Summary
    owner: Owner


def grant_leases(db: Connection, requests: Sequence[LeaseRequest]) -> list[Lease | ParleyError]:
    """Grant leases with new epochs, so that writes by earlier holders fail. Return a lease or an error for each
    request.
    """
    heads = _heads(db, [one.row for one in requests])
    taken: list[Lease | ParleyError] = []
    changes: list[tuple[Any, ...]] = []
    (epoch,) = db.execute("SELECT last FROM epochs").fetchone()
    for row, conversation_id, owner in requests:
        if row not in heads:
            taken.append(UnknownConversation(conversation_id))
        else:
            epoch += 1
            taken.append(Lease(conversation_id=conversation_id, epoch=epoch, last=Seq(heads[row].last)))
            changes.append((row, epoch, *_columns(owner)))
    if changes:
        _name_owners(db, changes)
        db.execute("UPDATE epochs SET last = ?", (epoch,))
    return taken


def append_entries(db: Connection, additions: Sequence[Append]) -> list[ParleyError | None]:
    """Append entries to conversations. Return one value for each append: None if the append succeeded, otherwise an
    error.

    An append after which the conversation is idle also removes the stored owner, so that releasing the lease needs
    no further write. The head of a log is its epoch and its last position. Almost always, each log has the head
    that its append expects, so the heads are read only if a log has a different head.
    """
    newest = _newest(db) if any(one.summary.is_active for one in additions) else None
    expected = _expected_heads(additions)
    if expected and _append_all(db, additions, expected, newest):
        return [None] * len(additions)
    heads = _heads(db, {one.row for one in additions})
    before = dict(heads)
    refused: list[ParleyError | None] = []
    for row, epoch, batch, *_ in additions:
        why = _refusal(heads.get(row), epoch, batch.first)
        refused.append(why)
        if why is None:
            heads[row] = _Head(epoch, heads[row].last + batch.rows)
    if accepted := [one for one, why in zip(additions, refused, strict=True) if why is None]:
        _append_all(db, accepted, before, newest)
    return refused


def _expected_heads(additions: Sequence[Append]) -> dict[int, _Head] | None:
    """Return a mapping from the row number of each log to the head (the epoch and the last position) that the log
    must have before the appends in `additions`.

    Return None if an append has no entries, or does not begin where the previous append to the same log ends.
    """
    expected: dict[int, _Head] = {}
    ends: dict[int, tuple[int, int]] = {}
    for row, epoch, batch, _, _ in additions:
        if batch.first is None:
            return None
        before = batch.first - 1
        if row not in ends:
            expected[row] = _Head(epoch, before)
        elif ends[row] != (epoch, before):
            return None
        ends[row] = (epoch, before + batch.rows)
    return expected


def _append_all(
    db: Connection, additions: Sequence[Append], heads: Mapping[int, _Head], newest: float | None
) -> bool:
    """Append entries to logs if each log has its expected head: the epoch and the last position. `heads` maps the
    row number of each log to the expected head. Return True if all logs had the expected heads. Return False, and
    change nothing, if no log had the expected head. `newest` is the latest recorded time of activity in any
    conversation.

    Raises:
        StoreFailed: only some of the logs had the expected heads. The caller has to roll the transaction back.
    """
    running: dict[int, tuple[Any, ...]] = {}
    ended: dict[int, tuple[Any, ...]] = {}
    for row, _, batch, summary, owner in additions:
        head = heads[row]
        before = running.pop(row, None) or ended.pop(row, None)
        last = (head.last if before is None else before[_LAST]) + batch.rows
        named = (None, None, None, None) if summary.state == "idle" else _columns(owner)
        *shown, at = columns_of(summary, newest)
        newest = at if newest is None else max(at, newest)
        if summary.outcome is None:
            running[row] = (last, *named, at, *shown[:_WITHOUT_OUTCOME], row, *head)
        else:
            ended[row] = (last, *named, at, *shown, row, *head)
    changed = sum(_change(db, some, _RUNNING, _NO_OUTCOME) for some in pieces(list(running.values())))
    changed += sum(_change(db, some, _ENDED) for some in pieces(list(ended.values())))
    if changed == len(running) + len(ended):
        write_all(db, [(one.row, one.batch) for one in additions])
    elif changed:
        raise StoreFailed("only some of the appends are possible")
    return bool(changed)


_LAST: Final = 0
_SHOWN: Final = SUMMARY.removesuffix(", updated_at").split(", ")
_WITHOUT_OUTCOME: Final = _SHOWN.index("ended_seq")
_RUNNING: Final = f"last, {OWNER}, updated_at, {', '.join(_SHOWN[:_WITHOUT_OUTCOME])}"
_ENDED: Final = f"last, {OWNER}, updated_at, {', '.join(_SHOWN)}"
_NO_OUTCOME: Final = f", ({', '.join(_SHOWN[_WITHOUT_OUTCOME:])}) = (0, NULL, NULL, NULL, NULL)"
"""The SQL assignment to the outcome columns of a conversation in which no turn has ended yet. The values are part
of the statement, because binding them would take time in each append.
"""


def _change(db: Connection, changes: Sequence[tuple[Any, ...]], columns: str, constants: str = "") -> int:
    """Change the rows of conversations that have the expected epoch and last position, and return the number of
    changed rows.

    Each change contains the new values of the `columns`, and then the row number, the expected epoch and the
    expected last position. `constants` contains SQL assignments to other columns, with the same values in all rows.
    """
    before = db.total_changes
    if len(changes) == 1:
        new = placeholders(len(changes[0]) - 3)
        where = "row = ? AND epoch = ? AND last = ?"
        db.execute(f"UPDATE conversations SET ({columns}) = ({new}){constants} WHERE {where}", changes[0])
    else:
        db.execute(
            f"WITH new ({columns}, row, old_epoch, old_last) AS ({values(len(changes), len(changes[0]))})"
            f" UPDATE conversations SET ({columns}) = ({_from_new(columns)}){constants} FROM new"
            " WHERE conversations.row = new.row AND epoch = old_epoch AND conversations.last = old_last",
            tuple(chain.from_iterable(changes)),
        )
    return db.total_changes - before


@cache
def _from_new(columns: str) -> str:
    return ", ".join(f"new.{column}" for column in columns.split(", "))


def _columns(owner: Owner) -> tuple[str, int, str, float]:
    """Return the values of the columns `OWNER` for the given owner."""
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


def _heads(db: Connection, rows: Collection[int]) -> dict[int, _Head]:
    """Return a mapping from each row number in `rows` to the head of its log: its epoch and its last position. Rows
    that do not exist are omitted.

    The query returns all heads as one value, because fetching each row would acquire the interpreter lock again.
    """
    found: dict[int, _Head] = {}
    for some in pieces(list(rows)):
        (packed,) = db.execute(
            f"SELECT group_concat(row || ' ' || {_number('epoch')} || ' ' || {_number('last')})"
            f" FROM conversations WHERE row IN ({placeholders(len(some))})",
            some,
        ).fetchone()
        for one in packed.split(",") if packed else ():
            row, epoch, last = map(int, one.split())
            found[row] = _Head(epoch, last)
    return found


def _newest(db: Connection) -> float | None:
    """Return the time of the newest activity in any conversation that is not archived, in seconds since the epoch;
    None if there was no activity.
    """
    (newest,) = db.execute(f"SELECT {NEWEST}").fetchone()
    return newest if isinstance(newest, float) else None


def _number(column: str) -> str:
    return f"iif(typeof({column}) = 'integer', {column}, {DAMAGED})"


def _name_owners(db: Connection, changes: Sequence[tuple[Any, ...]]) -> None:
    """Store the epochs and owners of conversations. Each change contains the row number, the epoch and the values
    of the `OWNER` columns.
    """
    columns = f"epoch, {OWNER}"
    new = ", ".join(f"new.{column}" for column in columns.split(", "))
    for some in pieces(changes):
        db.execute(
            f"WITH new (row, {columns}) AS ({values(len(some), len(some[0]))})"
            f" UPDATE conversations SET ({columns}) = ({new}) FROM new WHERE conversations.row = new.row",
            tuple(chain.from_iterable(some)),
        )
