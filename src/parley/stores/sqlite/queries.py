"""The SQL that creates, reads and deletes conversations. Other modules in this directory contain the remaining SQL.

A function that writes makes all checks before it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from parley.conversation.log import Entry
from parley.conversation.records import CommandOutput, record_type
from parley.errors import LeaseLost, StoreFailed, UnknownConversation, Unreadable
from parley.ports.store import (
    CHECKPOINT_ENTRIES,
    PAGE,
    PAGE_BYTES,
    Checkpoint,
    Head,
    Owner,
    Summary,
)
from parley.stores.sqlite.batch import Batch, groups_of, placeholders, write_all
from parley.stores.sqlite.columns import NEWEST, OWNER, SUMMARY, SUMMARY_READ, columns_of, owner_of, summary_of
from parley.stores.sqlite.damage import (
    fetch_around_damage,
    fetch_readable,
    is_damage,
    known_conversations,
    unreadable_if_damaged,
)
from parley.wire.ids import ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = [
    "BLOBS_INDEX",
    "add_to_draft",
    "checkpoint_of",
    "clear_owner",
    "create",
    "delete",
    "entries_after",
    "entries_before",
    "epochs_of",
    "finish_draft",
    "head",
    "mark_read",
    "owner_in",
    "position_of",
    "read_marks",
    "read_snapshot",
    "remove_some",
    "reserve",
    "row_of",
    "save_checkpoint",
    "set_archived",
]

# --- writing -----------------------------------------------------------------------------


def create(
    db: Connection, conversation_id: ConversationId, batch: Batch, summary: Summary, *, archived: bool
) -> int:
    """Create a conversation with the entries in `batch`, and return its row number. Every principal counts as
    having read the entries.
    """
    _refuse_taken(db, conversation_id)
    newest = db.execute(f"SELECT {NEWEST}").fetchone()[0] if summary.is_active else None
    columns = (conversation_id, batch.rows, batch.rows, archived, *columns_of(summary, newest))
    made = db.execute(
        f"INSERT INTO conversations (id, last, read_seq, archived, {SUMMARY})"
        f" VALUES ({placeholders(len(columns))})",
        columns,
    )
    assert made.lastrowid is not None
    write_all(db, [(made.lastrowid, batch)])
    return made.lastrowid


def _refuse_taken(db: Connection, conversation_id: ConversationId) -> None:
    if db.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation_id,)).fetchone():
        raise StoreFailed(f"conversation {conversation_id} already exists")


def clear_owner(db: Connection, row: int, epoch: int) -> None:
    db.execute(
        "UPDATE conversations SET owner_node = NULL, owner_pid = NULL, owner_address = NULL, owner_since = NULL"
        " WHERE row = ? AND epoch = ?",
        (row, epoch),
    )


def set_archived(db: Connection, conversation_id: ConversationId, *, archived: bool) -> None:
    changed = db.execute("UPDATE conversations SET archived = ? WHERE id = ?", (archived, conversation_id))
    if not changed.rowcount:
        raise UnknownConversation(conversation_id)


def mark_read(db: Connection, conversation_id: ConversationId, reader: str, seq: Seq) -> bool:
    """Record that the principal `reader` has read the conversation up to the position `seq`. Return False if an
    equal or later position is already recorded.
    """
    marked = db.execute(
        "INSERT INTO read_marks VALUES (?, ?, ?)"
        " ON CONFLICT (row, reader) DO UPDATE SET seq = excluded.seq WHERE excluded.seq > read_marks.seq",
        (row_of(db, conversation_id), reader, seq),
    )
    return marked.rowcount > 0


def read_marks(db: Connection, conversation_id: ConversationId) -> tuple[Seq, list[tuple[str, Seq]]]:
    """Return the position up to which the conversation counts as read by all principals. Also return a list of the
    principals that have marked the conversation as read, each with the position up to which the principal has read.
    """
    found = _named(db, "row, read_seq", conversation_id)
    if found is None:
        raise UnknownConversation(conversation_id)
    row, read_seq = found
    marks = db.execute("SELECT reader, seq FROM read_marks WHERE row = ? ORDER BY reader", (row,)).fetchall()
    return Seq(read_seq), [(reader, Seq(seq)) for reader, seq in marks]


def delete(db: Connection, row: int, epoch: int) -> None:
    """Delete the conversation with the row number `row`. `remove_some` removes its entries later.

    Raises:
        LeaseLost: the conversation does not exist or no longer has the epoch `epoch`.
    """
    if not db.execute("DELETE FROM conversations WHERE row = ? AND epoch = ?", (row, epoch)).rowcount:
        raise LeaseLost
    last = "SELECT seq FROM entries WHERE row = ? AND typeof(seq) = 'integer' ORDER BY seq DESC LIMIT 1"
    db.execute(f"INSERT INTO removed VALUES (?, coalesce(({last}), 0))", (row, row))


# A draft counts as deleted until it is finished. The lock of its writer prevents `remove_some` from removing it.


def reserve(db: Connection) -> int:
    """Reserve a row number for a draft, and return it. Row numbers are never reused."""
    if not db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'conversations'").rowcount:
        db.execute("INSERT INTO sqlite_sequence VALUES ('conversations', 1)")
    row: int = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'conversations'").fetchone()[0]
    return row


def add_to_draft(db: Connection, row: int, batch: Batch) -> None:
    first = batch.first or 1
    if first == 1:
        db.execute("INSERT INTO removed VALUES (?, ?)", (row, batch.rows))
    else:
        last = first - 1 + batch.rows
        changed = db.execute("UPDATE removed SET last = ? WHERE row = ? AND last = ?", (last, row, first - 1))
        if not changed.rowcount:
            raise StoreFailed("an earlier append was not written")
    write_all(db, [(row, batch)])


def finish_draft(
    db: Connection,
    row: int,
    last: Seq,
    conversation_id: ConversationId,
    summary: Summary,
    *,
    archived: bool,
    checkpoint: Checkpoint | None,
) -> None:
    _refuse_taken(db, conversation_id)
    if not db.execute("DELETE FROM removed WHERE row = ? AND last = ?", (row, last)).rowcount:
        raise StoreFailed("an earlier append was not written")
    columns = (row, conversation_id, last, last, archived, *columns_of(summary))
    db.execute(
        f"INSERT INTO conversations (row, id, last, read_seq, archived, {SUMMARY})"
        f" VALUES ({placeholders(len(columns))})",
        columns,
    )
    if checkpoint is not None:
        db.execute("INSERT INTO checkpoints VALUES (?, ?, ?)", (row, checkpoint.seq, checkpoint.data))


def remove_some(db: Connection, is_leased: Callable[[int], bool]) -> bool:
    """Remove the last page of entries of one deleted conversation or abandoned draft.

    `is_leased` returns whether the lease lock of a row is held. A draft whose lock is held is still being written,
    and is not removed. Return True if there may be more entries to remove.
    """
    deleted = db.execute("SELECT row, last FROM removed").fetchall()
    found = next((one for one in deleted if not is_leased(one[0])), None)
    if found is None:
        return False
    row, last = found
    rest = last - PAGE
    db.execute("DELETE FROM entries WHERE row = ? AND seq > ?", (row, rest))
    db.execute("DELETE FROM cuts WHERE row = ? AND seq > ?", (row, rest))
    db.execute("DELETE FROM checkpoints WHERE row = ?", (row,))
    db.execute("DELETE FROM read_marks WHERE row = ?", (row,))
    if rest > 0:
        db.execute("UPDATE removed SET last = ? WHERE row = ?", (rest, row))
    else:
        db.execute("DELETE FROM removed WHERE row = ?", (row,))
    return True


# --- reading -----------------------------------------------------------------------------


@contextmanager
def read_snapshot(db: Connection) -> Iterator[None]:
    """Make all statements in the `with` block read the same snapshot of the database. The snapshot is taken when
    the first statement is executed.
    """
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:  # some errors have already ended the transaction
            db.execute("ROLLBACK")


def row_of(db: Connection, conversation_id: ConversationId) -> int:
    found = _named(db, "row", conversation_id)
    if found is None:
        raise UnknownConversation(conversation_id)
    row: int = found[0]
    return row


def _named(db: Connection, columns: str, conversation_id: ConversationId) -> tuple[Any, ...] | None:
    """Return the values of the given columns for the conversation with the given id; None if the conversation does
    not exist.

    Raises:
        Unreadable: the row of the conversation is damaged.
    """
    wanted = f"SELECT {columns} FROM conversations WHERE"
    found: tuple[Any, ...] | None
    try:
        found = db.execute(f"{wanted} id = ?", (conversation_id,)).fetchone()
    except Exception as error:
        if not is_damage(error):
            raise
        # The index of the ids may be damaged while the row itself is intact.
        row = next((one.row for one in known_conversations(db) if one.id == conversation_id), None)
        if row is None:
            raise
        with unreadable_if_damaged(conversation_id):
            found = db.execute(f"{wanted} row = ?", (row,)).fetchone()
    return found


def owner_in(db: Connection, row: int) -> Owner | None:
    """Return the stored owner of the conversation with the row number `row`, even if the process of the owner has
    exited; None if no owner is stored.
    """
    found = db.execute(f"SELECT {OWNER} FROM conversations WHERE row = ?", (row,)).fetchone()
    return None if found is None else owner_of(*found)


def entries_after(
    db: Connection,
    conversation_id: ConversationId,
    after: Seq,
    *,
    limit: int = PAGE,
    max_bytes: int = PAGE_BYTES,
    visible_only: bool = False,
) -> list[Entry]:
    """Return a page of entries after the position `after`, in ascending order, as `Store.read` does.

    If there are no entries after this position, which is frequent, only one query is executed.
    """
    if _end_of(db, conversation_id)[1] <= after:
        return []
    with read_snapshot(db), unreadable_if_damaged(conversation_id):
        row, last = _end_of(db, conversation_id)
        positions = range(after + 1, after + min(limit, PAGE, last - after) + 1)
        return _page(db, conversation_id, row, positions, max_bytes, visible_only=visible_only)


def entries_before(
    db: Connection, conversation_id: ConversationId, before: Seq, *, limit: int = PAGE, max_bytes: int = PAGE_BYTES
) -> list[Entry]:
    """Return the last page of entries before the position `before`, in ascending order, as `Store.read_before`
    does.
    """
    with read_snapshot(db), unreadable_if_damaged(conversation_id):
        row, last = _end_of(db, conversation_id)
        end = min(before - 1, last)
        most = min(limit, PAGE, end)
        return _page(db, conversation_id, row, range(end, end - most, -1), max_bytes)[::-1]


def _end_of(db: Connection, conversation_id: ConversationId) -> tuple[int, int]:
    """Return the row number and the last position of the given conversation.

    Raises:
        UnknownConversation: the conversation does not exist.
        Unreadable: the row of the conversation is damaged.
    """
    kept = _named(db, "row, last", conversation_id)
    if kept is None:
        raise UnknownConversation(conversation_id)
    row, last = kept
    if type(last) is not int:
        raise Unreadable(conversation_id, "its last position is damaged")
    return row, last


def _page(
    db: Connection,
    conversation_id: ConversationId,
    row: int,
    positions: range,
    max_bytes: int,
    *,
    visible_only: bool = False,
) -> list[Entry]:
    """Return the entries at the given positions, in the order of the positions. End the page after the entry whose
    size makes the total size of the bodies exceed `max_bytes`, or before the first missing entry.

    If `visible_only` is true, leave out entries that clients do not see, except for the entry at the last position.
    The positions must then be ascending.

    Raises:
        Unreadable: the first entry is missing, or an entry is damaged.
    """
    from parley.stores.blobs import decompress, restore

    if not positions:
        return []
    cuts: dict[int, list[tuple[int, bytes]]] = {}
    for seq, offset, digest in _cuts(db, row, positions):
        cuts.setdefault(seq, []).append((offset, digest))

    def blob(digest: bytes) -> bytes:
        packed = fetch_around_damage(db, "SELECT data FROM blobs {} WHERE hash = ? LIMIT 1", (digest,))
        if not packed:
            raise ValueError("a blob is missing")
        return decompress(packed[0][0])

    found: list[Entry] = []
    names: dict[bytes, str] = {}
    size = 0
    entries = _visible_entries if visible_only else _entries
    for seq, at, kind, is_event, body in entries(db, row, positions):
        try:
            # JSON contains no NUL, but a zeroed page at the end of a long body consists of NULs.
            if type(at) is not float or body is None or b"\0" in body:
                raise ValueError("its content has changed")
            if cuts and seq in cuts:
                body = restore(body, ((offset, blob(digest)) for offset, digest in cuts[seq]))
            # The entries of a page have few types, so each type is decoded once. This is a hot path.
            name = names.get(kind) or names.setdefault(kind, kind.decode())
            if is_event:
                found.append(Entry(seq, at, name, True, body))
            else:
                found.append(Entry.stored(seq, at, name, is_event=False, body=body))
        except ValueError as error:
            raise Unreadable(conversation_id, f"entry {seq} is damaged ({error})") from error
        size += len(body)
        if size > max_bytes:
            break
    if not found:
        raise Unreadable(conversation_id, f"entry {positions[0]} is missing")
    return found


_ENTRIES: Final = (
    "SELECT seq, at, CAST(type AS BLOB), is_event, iif(typeof(body) = 'blob', body, NULL) FROM entries {}"
    " WHERE row = ? AND seq BETWEEN ? AND ?"
)


def _entries(db: Connection, row: int, positions: range) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of the entries whose positions are in `positions`. Stop at the first missing entry.

    If a page of the index is damaged, the entries are found with a table scan.
    """
    query = f"{_ENTRIES} ORDER BY seq {'ASC' if positions.step > 0 else 'DESC'}"
    read = 0
    try:
        for due, entry in zip(positions, db.execute(query.format(""), (row, *_bounds(positions))), strict=False):
            if entry[0] != due:
                return
            yield entry
            read += 1
    except Exception as error:
        if not is_damage(error):
            raise
        if rest := positions[read:]:
            scanned = db.execute(query.format("NOT INDEXED"), (row, *_bounds(rest)))
            yield from (entry for due, entry in zip(rest, scanned, strict=False) if entry[0] == due)


_COUNT: Final = "SELECT count(*) FROM entries WHERE row = ? AND seq BETWEEN ? AND ?"
_VISIBLE: Final = f"NOT (is_event IS 0 AND type IS NOT '{record_type(CommandOutput)}' AND seq IS NOT ?)"


def _visible_entries(db: Connection, row: int, positions: range) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of the entries that clients see and whose positions are in `positions`. Also yield damaged
    entries and the entry at the last position in `positions`. `positions` must be ascending.

    If an entry is missing or the query fails because of damage, yield all remaining entries up to the first missing
    entry, including entries that clients do not see.
    """
    first, last = _bounds(positions)
    rest = first
    try:
        (count,) = db.execute(_COUNT, (row, first, last)).fetchone()
        if count == len(positions):
            for entry in db.execute(f"{_ENTRIES.format('')} AND {_VISIBLE} ORDER BY seq", (row, first, last, last)):
                yield entry
                rest = entry[0] + 1
            return
    except Exception as error:
        if not is_damage(error):
            raise
    if rest <= last:
        yield from _entries(db, row, range(rest, last + 1))


def _bounds(positions: range) -> tuple[int, int]:
    """Return the lowest and the highest position of an ascending or descending range."""
    return min(positions[0], positions[-1]), max(positions[0], positions[-1])


BLOBS_INDEX: Final = "INDEXED BY cuts_by_blob"
"""The index hint for queries on the table `cuts`, which lists the blobs of each entry. The index contains all
columns of the table.
"""


def _cuts(db: Connection, row: int, positions: range) -> list[tuple[Any, ...]]:
    """Return the position, offset and hash of each blob that was cut out of the entries whose positions are in
    `positions`.
    """
    query = "SELECT seq, offset, hash FROM cuts {} WHERE row = ? AND seq BETWEEN ? AND ? ORDER BY seq, offset"
    return fetch_around_damage(db, query, (row, *_bounds(positions)), instead=BLOBS_INDEX)


def position_of(db: Connection, conversation_id: ConversationId, kind: str, key: str) -> Seq | None:
    """Return the position of the first entry with the type `kind` and the key `key`; None if there is no such
    entry.
    """
    row, _ = _end_of(db, conversation_id)
    with unreadable_if_damaged(conversation_id):
        found = db.execute(
            # Without the plus sign, SQLite uses the index by position instead of the index by key.
            "SELECT min(+seq) FROM entries WHERE row = ? AND type = ? AND key = ?",
            (row, kind, key),
        ).fetchone()
    return None if found[0] is None else Seq(found[0])


def save_checkpoint(db: Connection, row: int, epoch: int, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint of the conversation with the row number `row`. Do nothing if the new checkpoint is
    less than `CHECKPOINT_ENTRIES` entries after the saved one.

    Raises:
        LeaseLost: the conversation no longer has the epoch `epoch`, or its log ends before the checkpoint.
    """
    head = db.execute("SELECT epoch, last FROM conversations WHERE row = ?", (row,)).fetchone()
    if head is None or head[0] != epoch or checkpoint.seq > head[1]:
        raise LeaseLost
    saved = db.execute("SELECT seq FROM checkpoints WHERE row = ?", (row,)).fetchone()
    if saved is None or checkpoint.seq >= saved[0] + CHECKPOINT_ENTRIES:
        db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (row, checkpoint.seq, checkpoint.data))


def checkpoint_of(db: Connection, conversation_id: ConversationId) -> Checkpoint | None:
    """Return the checkpoint of the given conversation; None if the checkpoint is missing or damaged."""
    row, last = _end_of(db, conversation_id)
    found = fetch_readable(db, "SELECT seq, data FROM checkpoints WHERE row = ?", (row,))
    for seq, data in found:
        if type(seq) is int and 0 < seq <= last and type(data) is bytes:
            return Checkpoint(seq=Seq(seq), data=data)
    return None


def epochs_of(db: Connection, rows: Sequence[int]) -> dict[int, int]:
    """Return a mapping from each of the given row numbers to the epoch of its conversation. Rows that do not exist
    are omitted.
    """
    found: dict[int, int] = {}
    for some in groups_of(rows):
        found |= dict(
            db.execute(f"SELECT row, epoch FROM conversations WHERE row IN ({placeholders(len(some))})", some)
        )
    return found


def head(db: Connection, conversation_id: ConversationId, is_leased: Callable[[int], bool]) -> Head:
    columns = f"row, last, epoch, archived, {OWNER}, {SUMMARY_READ}"
    found = _named(db, columns, conversation_id)
    if found is None:
        raise UnknownConversation(conversation_id)
    row, last, epoch, archived, node, pid, address, since, *summary = found
    if not isinstance(last, int):
        raise Unreadable(conversation_id, "its last position is damaged")
    owner = owner_of(node, pid, address, since)
    return Head(
        last=Seq(last),
        epoch=epoch,
        owner=owner if owner is not None and is_leased(row) else None,
        summary=summary_of(*summary),
        archived=bool(archived),
    )
