"""The requests that the writer executes, and SQL statements that each handle many conversations.

Every statement that changes a conversation is a conditional UPDATE of its row under READ COMMITTED. The UPDATE has
an effect only if the row contains the epoch, the last position and the id of the last batch that this process
expects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final

from parley.errors import LeaseLost, OwnedElsewhere, ParleyError, StoreFailed, UnknownConversation
from parley.ports.store import CHECKPOINT_ENTRIES, Checkpoint, Lease, Owner, Summary
from parley.stores.postgres.batch import BLOB_COLUMNS, Batch, Shape, arrays_of, pack
from parley.stores.postgres.driver import Connection, replicated
from parley.stores.postgres.held_lease import HeldLease
from parley.stores.postgres.leases import ALIVE_OR_CUT_OFF, LeaseKeeper
from parley.stores.postgres.rows import changed_columns
from parley.stores.search import SLACK_SECONDS, STEP_SECONDS
from parley.wire.ids import ConversationId, Seq

__all__ = [
    "Acquire",
    "Append",
    "Delete",
    "Group",
    "Release",
    "Request",
    "SaveCheckpoint",
    "active_at",
    "insertions",
]

TRIES: Final = 5
"""The maximum number of attempts to acquire a lease. Further attempts are necessary if other processes acquire and
release the lease at the same time.
"""


class Group(ABC):
    """A group of requests of one kind that are executed together. Each subclass executes one kind of request."""

    order: ClassVar[int]
    """The rank of this kind of request. Groups with a lower rank are executed first."""
    needs_holder: ClassVar[bool] = False
    """True if this process must be registered as a lease holder before the requests can be executed."""

    def __init__(self, requests: Sequence[Any], keeper: LeaseKeeper, token: bytes) -> None:
        """Create the group. `token` identifies the group, and stays the same if the group is executed again. The
        database stores it as the id of the last batch of each changed log.
        """
        self._requests, self._keeper, self._token = requests, keeper, token

    async def prepare(self) -> None:  # noqa: B027 - most kinds need no preparation
        """Do the work that needs no connection to the database, such as compressing blobs."""

    @abstractmethod
    async def execute(self, db: Connection, may_be_done: bool) -> list[Any]:
        """Execute the requests, and return the result or the error of each request, in order.

        `may_be_done` is True if an earlier attempt may have been committed.
        """

    def done(self, request: Any, outcome: Any, *, is_unwanted: bool) -> Request | None:
        """Update the state of this process after a request was executed successfully with the result `outcome`.

        Return a request that undoes the executed request; None if nothing has to be undone. `is_unwanted` is True
        if the caller of the request has already received an error.
        """
        return None

    def lost(self, request: Any) -> None:
        """Mark the lease of `request` as lost. Call this method when the request has failed with `LeaseLost`."""
        if (held := request.held) is not None:
            self._keeper.lose(held)


class Request:
    """A write request for one conversation. `held` is the lease under which the request is executed; None if the
    request needs no lease.
    """

    kind: ClassVar[type[Group]]

    def __init__(self, conversation_id: ConversationId, held: HeldLease | None = None) -> None:
        self.id, self.held = conversation_id, held


# --- appending ---------------------------------------------------------------------------


def active_at(given: str, is_active: str, place: str) -> str:
    """Return an SQL expression for the time to record for a conversation's last activity. The expression follows
    the same rule as `parley.stores.search.active_at`.

    The arguments are SQL expressions: `given` for the time in the summary, `is_active` for a flag that is true if
    the conversation is active now, and `place` for the number of the conversation in the statement, counted from 1.
    """
    newest = "(SELECT max(updated_at) FROM conversations WHERE NOT archived)"
    return (
        f"CASE WHEN {is_active} AND {given} < {newest} - {SLACK_SECONDS}"
        f" THEN {newest} + {STEP_SECONDS} * {place} ELSE {given} END"
    )


def _unnest(columns: Mapping[str, str], first: int) -> str:
    """Return an SQL expression that converts array parameters to rows with the alias `n`. The column `place` of a
    row is its index, counted from 1.

    `columns` maps the name of each column to the SQL type of its array. `first` is the number of the first
    parameter.
    """
    arrays = ", ".join(f"${first + place}::{kind}" for place, kind in enumerate(columns.values()))
    return f"unnest({arrays}) WITH ORDINALITY AS n({', '.join(columns)}, place)"


def insertions(target: str, first: int, shape: Shape) -> str:
    """Return CTEs that insert entries and their blobs into the conversations whose numbers are in the CTE `target`.

    `first` is the number of the first SQL parameter. The parameters are the arrays that `arrays_of` returns.
    `shape` is the set of optional columns that `arrays_of` returns together with the arrays.
    """
    columns = shape.entry_columns
    values = {name: name for name in columns}
    if not shape.has_blobs:
        values |= {"is_cut": "false", "size": "octet_length(body)"}
    values["arrival"] = "CASE WHEN words IS NOT NULL THEN nextval('arrivals') END"
    sql = f"""added AS (
        INSERT INTO entries ({", ".join(values)})
        SELECT {", ".join(values.values())} FROM (
            SELECT n.* FROM {_unnest(columns, first)}
            JOIN {target} ON {target}.number = n.conversation ORDER BY n.place
        ) AS ordered
    )"""
    if not shape.has_blobs:
        return sql
    joined = f"FROM {_unnest(BLOB_COLUMNS, first + len(columns))} JOIN {target} ON {target}.number = n.conversation"
    return f"""{sql}, blob AS (
        INSERT INTO blobs SELECT n.conversation, n.hash, n.data {joined} ON CONFLICT DO NOTHING
    ), cut AS (
        INSERT INTO cuts SELECT n.conversation, n.seq, n.position, n.hash {joined}
    )"""


_HEAD_COLUMNS: Final = {
    "number": "bigint[]",
    "epoch": "bigint[]",
    "old_last": "bigint[]",
    "old_batch": "bytea[]",
    "new_last": "bigint[]",
    "state": "text[]",
    "updated_at": "double precision[]",
    "is_active": "boolean[]",
}
_CHANGED_COLUMNS: Final = {
    "details": "bytea[]",
    "title": "text[]",
    "directory": "bytea[]",
    "ended_seq": "bigint[]",
    "ended_at": "double precision[]",
    "has_failed": "boolean[]",
}
"""The columns of a summary that seldom change, with the SQL types of their array parameters. One statement appends
to many conversations. The arrays contain NULL for each conversation without a change in these columns. If no
conversation has such a change, the statement omits these columns.
"""


@cache
def _append_sql(shape: Shape, has_changed: bool) -> str:
    columns = _HEAD_COLUMNS | (_CHANGED_COLUMNS if has_changed else {})
    token = len(columns) + 1
    changes = "".join(
        f"{name} = CASE WHEN n.details IS NULL THEN c.{name} ELSE n.{name} END, " for name in _CHANGED_COLUMNS
    )
    return f"""
    WITH changed AS (
        UPDATE conversations AS c SET
            {changes if has_changed else ""}
            last = n.new_last,
            batch = ${token},
            state = n.state,
            updated_at = {active_at("n.updated_at", "n.is_active", "n.place")}
        FROM {_unnest(columns, 1)}
        WHERE c.number = n.number AND c.epoch = n.epoch AND c.last = n.old_last AND c.batch = n.old_batch
        RETURNING c.number
    ), {insertions("changed", token + 1, shape)}
    SELECT number FROM changed
    """


class _LogAppends:
    """All appends to one conversation that a statement executes."""

    __slots__ = ("batches", "held", "last", "summary")

    def __init__(self, held: HeldLease) -> None:
        self.held, self.last = held, held.last
        self.batches: list[Batch] = []
        self.summary: Summary | None = None

    def refusal(self, first: int | None) -> ParleyError | None:
        """Return the reason why entries that begin at the position `first` cannot be appended; None if the entries
        can be appended. `first` is None for an append that only replaces the summary.
        """
        if self.held.is_lost or (first is not None and first <= self.last):
            return LeaseLost()
        if first is not None and first != self.last + 1:
            return StoreFailed("an earlier append was not written")
        return None

    def add(self, batch: Batch, summary: Summary) -> None:
        self.batches.append(batch)
        self.last += batch.rows
        self.summary = summary

    def head(self) -> tuple[Any, ...]:
        """Return the values of `_HEAD_COLUMNS`, in this order: the number and the epoch of the conversation, the
        last position and the id of the last batch that the database must contain, the new last position, and
        `state`, `updated_at` and `is_active` of the summary.
        """
        held, summary = self.held, self.summary
        assert summary is not None
        numbers = (held.number, held.epoch, held.last, held.batch, self.last)
        return *numbers, summary.state, summary.updated_at, summary.is_active

    def changed(self) -> tuple[Any, ...] | None:
        """Return the values of the seldom changed columns of the summary (`_CHANGED_COLUMNS`); None if these values
        have not changed.
        """
        assert self.summary is not None
        return changed_columns(self.summary, self.held.summary)


_UNCHANGED: Final = (None,) * len(_CHANGED_COLUMNS)


class AppendGroup(Group):
    """Appends entries to any number of conversations with one statement."""

    order = 1

    def __init__(self, requests: Sequence[Append], keeper: LeaseKeeper, token: bytes) -> None:
        super().__init__(requests, keeper, token)
        self._fenced: set[int] = set()
        """The numbers of the conversations to which the last execution could not append, because another process
        has acquired the lease.
        """

    async def prepare(self) -> None:
        await pack(request.batch for request in self._requests)

    async def execute(self, db: Connection, may_be_done: bool) -> list[Any]:
        logs: dict[int, _LogAppends] = {}
        outcomes: list[Any] = []
        for request in self._requests:
            held = request.held
            log = logs.get(held.number) or _LogAppends(held)
            why = log.refusal(request.batch.first)
            outcomes.append(why)
            if why is None:
                log.add(request.batch, request.summary)
                logs[held.number] = log
        written = await self._written(db, logs) if may_be_done else set()
        if rest := [log for number, log in logs.items() if number not in written]:
            written |= await self._append(db, rest)
            if may_be_done and len(written) < len(logs):
                written |= await self._written(db, logs)  # the earlier attempt was committed after all
        for number in written:
            held, log = logs[number].held, logs[number]
            held.last, held.batch, held.summary = log.last, self._token, log.summary
        self._fenced = logs.keys() - written
        return [
            LeaseLost() if outcome is None and request.held.number in self._fenced else outcome
            for request, outcome in zip(self._requests, outcomes, strict=True)
        ]

    async def _append(self, db: Connection, logs: Sequence[_LogAppends]) -> set[int]:
        """Append the entries of `logs` with one statement. Return the numbers of the conversations that were
        changed. Conversations that no longer have the expected epoch, last position or last batch are not changed.
        """
        shape, arrays = arrays_of([(one.held.number, batch) for one in logs for batch in one.batches])
        heads = zip(*(log.head() for log in logs), strict=True)
        changed = [log.changed() for log in logs]
        has_changed = any(one is not None for one in changed)
        summaries = zip(*(one or _UNCHANGED for one in changed), strict=True) if has_changed else ()
        sql = _append_sql(shape, has_changed)
        return {row[0] for row in await db.fetch(sql, *heads, *summaries, self._token, *arrays)}

    async def _written(self, db: Connection, logs: dict[int, _LogAppends]) -> set[int]:
        """Return the numbers of the conversations whose entries in this group were already written by an earlier
        attempt. Before returning, wait until the standbys have received these entries.
        """
        rows = await db.fetch(
            "SELECT number FROM conversations WHERE number = ANY($1::bigint[]) AND batch = $2",
            list(logs),
            self._token,
        )
        if rows:
            await replicated(db)
        return {row[0] for row in rows}

    def lost(self, request: Append) -> None:
        assert request.held is not None
        if request.held.number in self._fenced:
            super().lost(request)


class Append(Request):
    """A request to append entries under a lease, and to replace the summary."""

    kind = AppendGroup

    def __init__(self, held: HeldLease, batch: Batch, summary: Summary) -> None:
        super().__init__(held.id, held)
        self.batch, self.summary = batch, summary


# --- leases ------------------------------------------------------------------------------


class AcquireGroup(Group):
    """Acquires leases that are free, or whose holder has exited."""

    order = 0
    needs_holder = True

    def __init__(self, requests: Sequence[Acquire], keeper: LeaseKeeper, token: bytes) -> None:
        super().__init__(requests, keeper, token)
        self._granted: dict[ConversationId, HeldLease] = {}

    async def execute(self, db: Connection, may_be_done: bool) -> list[Any]:
        found: dict[ConversationId, Lease | ParleyError] = {}
        first: dict[ConversationId, Acquire] = {}
        for request in self._requests:
            if (held := self._keeper.held.get(request.id)) is not None:
                found[request.id] = _owned_by(held.owner, self._requests[0].owner)
            else:
                first.setdefault(request.id, request)
        for _ in range(TRIES):
            wanted = [request for one, request in first.items() if one not in found]
            if not wanted:
                break
            found |= await self._try(db, wanted)
        else:
            for one in first.keys() - found.keys():
                found[one] = OwnedElsewhere(pid=0, address="")
        taken = {id(request) for one, request in first.items() if isinstance(found[one], Lease)}
        return [
            _owned_by(first[request.id].owner, request.owner)
            if isinstance(found[request.id], Lease) and id(request) not in taken
            else found[request.id]
            for request in self._requests
        ]

    async def _try(self, db: Connection, requests: Sequence[Acquire]) -> dict[ConversationId, Lease | ParleyError]:
        """Try once to acquire the requested leases, and return a lease or an error for each conversation.

        The result lacks conversations whose lease another process has acquired during this attempt. The caller
        tries again to acquire these leases.
        """
        ids = [request.id.encode() for request in requests]
        rows = await db.fetch(_STATE, ids, not self._keeper.may_steal, self._keeper.refused())
        state = {row[0]: row[1:] for row in rows}
        outcomes: dict[ConversationId, Lease | ParleyError] = {}
        free: dict[int, tuple[Acquire, int]] = {}
        for request in requests:
            if (row := state.get(request.id.encode())) is None:
                outcomes[request.id] = UnknownConversation(request.id)
                continue
            number, epoch, holder, is_alive, node, pid, address = row
            if is_alive and holder != self._keeper.number:
                owner = Owner(node=node.decode(), pid=pid, address=(address or b"").decode(), since=0.0)
                outcomes[request.id] = _owned_by(owner, request.owner)
            else:
                free[number] = request, epoch
        if free:
            arrays = zip(
                *(
                    (number, epoch, one.owner.address.encode(), one.owner.since)
                    for number, (one, epoch) in free.items()
                ),
                strict=True,
            )
            for number, epoch, last, batch in await db.fetch(_TAKE, *arrays, self._keeper.number):
                request = free[number][0]
                lease = Lease(conversation_id=request.id, epoch=epoch, last=Seq(last))
                held = HeldLease(request.id, number, lease, batch, request.owner, request.on_lost)
                outcomes[request.id], self._granted[request.id] = lease, held
        return outcomes

    def done(self, request: Acquire, outcome: Lease, *, is_unwanted: bool) -> Request | None:
        held = self._granted[request.id]
        self._keeper.held[request.id] = held
        return Release(held) if is_unwanted else None


_STATE: Final = f"""
    SELECT c.id, c.number, c.epoch, c.holder, h.number IS NOT NULL AND ($2 OR {ALIVE_OR_CUT_OFF}),
        h.node, h.pid, c.owner_address
    FROM conversations c LEFT JOIN holders h ON h.number = c.holder WHERE c.id = ANY($1::bytea[])
"""
_TAKE: Final = """
    UPDATE conversations AS c
    SET epoch = nextval('epochs'), holder = $5, owner_address = n.address, owner_since = n.since
    FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::double precision[]) AS n(number, epoch, address, since)
    WHERE c.number = n.number AND c.epoch = n.epoch
    RETURNING c.number, c.epoch, c.last, c.batch
"""


def _owned_by(owner: Owner, asking: Owner) -> OwnedElsewhere:
    node = owner.node_unless(asking.node)
    return OwnedElsewhere(node=node, pid=owner.pid, address=owner.address, shares_database=True)


class Acquire(Request):
    """A request to acquire a lease. `owner` is the owner to store, and `on_lost` is called when the lease
    is lost.
    """

    kind = AcquireGroup

    def __init__(self, conversation_id: ConversationId, owner: Owner, on_lost: Callable[[], None]) -> None:
        super().__init__(conversation_id)
        self.owner, self.on_lost = owner, on_lost


class ReleaseGroup(Group):
    """Releases any number of leases with one statement."""

    order = 4

    async def execute(self, db: Connection, may_be_done: bool) -> list[Any]:
        await db.execute(
            "UPDATE conversations AS c SET holder = NULL, owner_address = NULL, owner_since = NULL"
            " FROM unnest($1::bigint[], $2::bigint[]) AS n(number, epoch)"
            " WHERE c.number = n.number AND c.epoch = n.epoch",
            [request.held.number for request in self._requests],
            [request.held.epoch for request in self._requests],
        )
        return [None] * len(self._requests)


class Release(Request):
    """A request to release a lease. The caller must remove the lease from `LeaseKeeper.held` before the caller
    submits the request.
    """

    kind = ReleaseGroup

    def __init__(self, held: HeldLease) -> None:
        super().__init__(held.id, held)


# --- checkpoints and deletions -----------------------------------------------------------


class CheckpointGroup(Group):
    """Saves checkpoints, each with a separate statement."""

    order = 2

    async def execute(self, db: Connection, may_be_done: bool) -> list[Any]:
        outcomes: list[Any] = []
        for request in self._requests:
            saved = await db.fetchval(
                _SAVE_CHECKPOINT,
                request.held.number,
                request.held.epoch,
                request.checkpoint.seq,
                request.checkpoint.data,
                CHECKPOINT_ENTRIES,
            )
            outcomes.append(None if saved else LeaseLost())
        return outcomes

    def lost(self, request: SaveCheckpoint) -> None:
        """Do nothing, because the lease may still be held: the request also fails with `LeaseLost` if the
        checkpoint is after the end of the log.
        """


_SAVE_CHECKPOINT: Final = """
    WITH current AS (
        SELECT number FROM conversations WHERE number = $1 AND epoch = $2 AND last >= $3
    ), saved AS (
        INSERT INTO checkpoints SELECT number, $3, $4 FROM current
        ON CONFLICT (conversation) DO UPDATE SET seq = excluded.seq, data = excluded.data
        WHERE excluded.seq >= checkpoints.seq + $5
    )
    SELECT EXISTS (SELECT 1 FROM current)
"""


class SaveCheckpoint(Request):
    """A request to replace the checkpoint of a log."""

    kind = CheckpointGroup

    def __init__(self, held: HeldLease, checkpoint: Checkpoint) -> None:
        super().__init__(held.id, held)
        self.checkpoint = checkpoint


class DeleteGroup(Group):
    """Deletes conversations, each with a separate statement."""

    order = 3

    async def execute(self, db: Connection, may_be_done: bool) -> list[Any]:
        outcomes: list[Any] = []
        for request in self._requests:
            held = request.held
            deleted = await db.fetchval(_DELETE, held.number, held.epoch)
            if deleted is None and may_be_done:
                exists = "SELECT EXISTS (SELECT 1 FROM conversations WHERE number = $1)"
                deleted = not await db.fetchval(exists, held.number) or None
                await replicated(db)
            outcomes.append(LeaseLost() if deleted is None else None)
        return outcomes

    def done(self, request: Delete, outcome: None, *, is_unwanted: bool) -> Request | None:
        assert request.held is not None
        if self._keeper.held.get(request.id) is request.held:
            del self._keeper.held[request.id]
        return None


_DELETE: Final = """
    WITH deleted AS (DELETE FROM conversations WHERE number = $1 AND epoch = $2 RETURNING number, last)
    INSERT INTO removed (conversation, last) SELECT number, last FROM deleted RETURNING conversation
"""


class Delete(Request):
    """A request to delete a conversation. The entries of the conversation are removed later."""

    kind = DeleteGroup

    def __init__(self, held: HeldLease) -> None:
        super().__init__(held.id, held)
