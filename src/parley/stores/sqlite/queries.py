"""The SQL of the store, except its most frequent writes. A function that writes makes all checks before it
changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from parley.conversation.log import Entry
from parley.conversation.records import QuestionAsked, record_type
from parley.errors import LeaseLost, StoreFailed, UnknownConversation, Unreadable
from parley.ports.store import (
    CHECKPOINT_ENTRIES,
    PAGE,
    PAGE_BYTES,
    STATES,
    Checkpoint,
    ConversationListing,
    ConversationPage,
    Head,
    Owner,
    Query,
    Summary,
)
from parley.stores.search import SEARCHED, active_at, approval_id_in, normalize_path
from parley.stores.sqlite.batch import Batch, placeholders, write_all
from parley.stores.sqlite.damage import (
    KnownConversation,
    fetch_around_damage,
    fetch_readable,
    is_damage,
    known_conversations,
    unreadable_if_damaged,
)
from parley.wire.ids import ApprovalId, ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = [
    "BLOBS_INDEX",
    "NEWEST",
    "OWNER",
    "SUMMARY",
    "ChangeDetector",
    "add_to_draft",
    "as_text",
    "checkpoint_of",
    "clear_owner",
    "columns_of",
    "create",
    "delete",
    "entries_after",
    "entries_before",
    "epochs_of",
    "expired",
    "find",
    "finish_draft",
    "has_approvals",
    "head",
    "owner_in",
    "position_of",
    "read_snapshot",
    "remove_some",
    "reserve",
    "row_of",
    "save_checkpoint",
    "set_archived",
]

OWNER: Final = "owner_node, owner_pid, owner_address, owner_since"
SUMMARY: Final = "title, cwd, model, state, updated_at"
_SUMMARY_READ: Final = "CAST(title AS BLOB), CAST(cwd AS BLOB), CAST(model AS BLOB), state, updated_at"
"""The columns of a summary for reading. Texts are read as bytes, because a damaged text must not fail the whole
list.
"""


# --- writing -----------------------------------------------------------------------------


def create(
    db: Connection, conversation_id: ConversationId, batch: Batch, summary: Summary, *, archived: bool
) -> int:
    """Create a conversation and return its row number."""
    _refuse_taken(db, conversation_id)
    newest = db.execute(f"SELECT {NEWEST}").fetchone()[0] if summary.is_active else None
    made = db.execute(
        f"INSERT INTO conversations (id, last, archived, {SUMMARY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (conversation_id, batch.rows, archived, *columns_of(summary, newest)),
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


def delete(db: Connection, row: int, epoch: int) -> None:
    """Delete a conversation. Its entries are removed later (`remove_some`)."""
    if not db.execute("DELETE FROM conversations WHERE row = ? AND epoch = ?", (row, epoch)).rowcount:
        raise LeaseLost
    last = "SELECT seq FROM entries WHERE row = ? AND typeof(seq) = 'integer' ORDER BY seq DESC LIMIT 1"
    db.execute(f"INSERT INTO removed VALUES (?, coalesce(({last}), 0))", (row, row))


# A draft counts as deleted until it is finished. The lock of its writer keeps `remove_some` from removing it.


def reserve(db: Connection) -> int:
    """Return a row number that is never used again."""
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
    db.execute(
        f"INSERT INTO conversations (row, id, last, archived, {SUMMARY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row, conversation_id, last, archived, *columns_of(summary)),
    )
    if checkpoint is not None:
        db.execute("INSERT INTO checkpoints VALUES (?, ?, ?)", (row, checkpoint.seq, checkpoint.data))


def remove_some(db: Connection, is_leased: Callable[[int], bool]) -> bool:
    """Remove the last page of entries of a deleted conversation; return whether there may be more to remove."""
    deleted = db.execute("SELECT row, last FROM removed").fetchall()
    found = next((one for one in deleted if not is_leased(one[0])), None)
    if found is None:
        return False
    row, last = found
    rest = last - PAGE
    db.execute("DELETE FROM entries WHERE row = ? AND seq > ?", (row, rest))
    db.execute("DELETE FROM cuts WHERE row = ? AND seq > ?", (row, rest))
    db.execute("DELETE FROM checkpoints WHERE row = ?", (row,))
    if rest > 0:
        db.execute("UPDATE removed SET last = ? WHERE row = ?", (rest, row))
    else:
        db.execute("DELETE FROM removed WHERE row = ?", (row,))
    return True


# --- reading -----------------------------------------------------------------------------


@contextmanager
def read_snapshot(db: Connection) -> Iterator[None]:
    """Make all statements of this block read the same snapshot of the database, taken at the first statement."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:  # some errors end the transaction
            db.execute("ROLLBACK")


def row_of(db: Connection, conversation_id: ConversationId) -> int:
    found = _named(db, "row", conversation_id)
    if found is None:
        raise UnknownConversation(conversation_id)
    row: int = found[0]
    return row


def _named(db: Connection, columns: str, conversation_id: ConversationId) -> tuple[Any, ...] | None:
    """Return columns of a conversation; None if the id does not exist.

    Raises:
        Unreadable: its row is damaged.
    """
    wanted = f"SELECT {columns} FROM conversations WHERE"
    found: tuple[Any, ...] | None
    try:
        found = db.execute(f"{wanted} id = ?", (conversation_id,)).fetchone()
    except Exception as error:
        if not is_damage(error):
            raise
        # The index of the ids may be damaged, and the row itself not.
        row = next((one.row for one in known_conversations(db) if one.id == conversation_id), None)
        if row is None:
            raise
        with unreadable_if_damaged(conversation_id):
            found = db.execute(f"{wanted} row = ?", (row,)).fetchone()
    return found


def owner_in(db: Connection, row: int) -> Owner | None:
    """Return the last process that acquired the lease and did not release it, dead or alive."""
    found = db.execute(f"SELECT {OWNER} FROM conversations WHERE row = ?", (row,)).fetchone()
    return None if found is None else _owner(*found)


def entries_after(
    db: Connection, conversation_id: ConversationId, after: Seq, *, limit: int = PAGE, max_bytes: int = PAGE_BYTES
) -> list[Entry]:
    """Return a page of entries after a position. If there are none, which is frequent, one query is enough."""
    if _end_of(db, conversation_id)[1] <= after:
        return []
    with read_snapshot(db), unreadable_if_damaged(conversation_id):
        row, last = _end_of(db, conversation_id)
        most = min(limit, PAGE, last - after)
        return _page(db, conversation_id, row, range(after + 1, after + most + 1), max_bytes)


def entries_before(
    db: Connection, conversation_id: ConversationId, before: Seq, *, limit: int = PAGE, max_bytes: int = PAGE_BYTES
) -> list[Entry]:
    """Return a page of the last entries before a position, in ascending order."""
    with read_snapshot(db), unreadable_if_damaged(conversation_id):
        row, last = _end_of(db, conversation_id)
        end = min(before - 1, last)
        most = min(limit, PAGE, end)
        return _page(db, conversation_id, row, range(end, end - most, -1), max_bytes)[::-1]


def _end_of(db: Connection, conversation_id: ConversationId) -> tuple[int, int]:
    """Return the row and the last position of a conversation."""
    kept = _named(db, "row, last", conversation_id)
    if kept is None:
        raise UnknownConversation(conversation_id)
    row, last = kept
    if type(last) is not int:
        raise Unreadable(conversation_id, "its last position is damaged")
    return row, last


def _page(
    db: Connection, conversation_id: ConversationId, row: int, positions: range, max_bytes: int
) -> list[Entry]:
    """Return the entries at these positions, which ascend or descend, including the first one that exceeds the
    limit of bytes.

    Raises:
        Unreadable: the first of them is missing, or one of them is damaged.
    """
    from parley.stores.sqlite.blobs import decompress, restore

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
    size = 0
    for due, (seq, at, kind, is_event, body) in zip(positions, _entries(db, row, positions), strict=False):
        if seq != due:
            break
        try:
            # JSON contains no NUL, and a zeroed page at the end of a long body contains nothing else.
            if type(at) is not float or body is None or b"\0" in body:
                raise ValueError("not what was written")
            if seq in cuts:
                body = restore(body, ((offset, blob(digest)) for offset, digest in cuts[seq]))
            found.append(Entry.stored(seq, at, kind.decode(), is_event=bool(is_event), body=body))
        except ValueError as error:
            raise Unreadable(conversation_id, f"entry {seq} is damaged ({error})") from error
        size += len(body)
        if size > max_bytes:
            break
    if not found:
        raise Unreadable(conversation_id, f"entry {positions[0]} is missing")
    return found


def _entries(db: Connection, row: int, positions: range) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of the entries at these positions. If a page of the index is damaged, a table scan finds
    them.
    """
    direction = "ASC" if positions.step > 0 else "DESC"
    query = (
        "SELECT seq, at, CAST(type AS BLOB), is_event, iif(typeof(body) = 'blob', body, NULL) FROM entries {}"
        f" WHERE row = ? AND seq BETWEEN ? AND ? ORDER BY seq {direction}"
    )
    read = 0
    try:
        for entry in db.execute(query.format(""), (row, *_bounds(positions))):
            yield entry
            read += 1
    except Exception as error:
        if not is_damage(error):
            raise
        if rest := positions[read:]:
            yield from db.execute(query.format("NOT INDEXED"), (row, *_bounds(rest)))


def _bounds(positions: range) -> tuple[int, int]:
    """Return the least and the greatest position."""
    return min(positions[0], positions[-1]), max(positions[0], positions[-1])


BLOBS_INDEX: Final = "INDEXED BY cuts_by_blob"
"""An index of the table `cuts` that contains all its columns."""


def _cuts(db: Connection, row: int, positions: range) -> list[tuple[Any, ...]]:
    """Return position, offset and hash of the blobs that were cut out of the entries at these positions."""
    query = "SELECT seq, offset, hash FROM cuts {} WHERE row = ? AND seq BETWEEN ? AND ? ORDER BY seq, offset"
    return fetch_around_damage(db, query, (row, *_bounds(positions)), instead=BLOBS_INDEX)


def position_of(db: Connection, conversation_id: ConversationId, kind: str, key: str) -> Seq | None:
    """Return the position of the entry with a key; None if there is none."""
    row, _ = _end_of(db, conversation_id)
    with unreadable_if_damaged(conversation_id):
        found = db.execute(
            # Without the plus sign SQLite would walk the index by position instead of the one by key.
            "SELECT min(+seq) FROM entries WHERE row = ? AND type = ? AND key = ?",
            (row, kind, key),
        ).fetchone()
    return None if found[0] is None else Seq(found[0])


def save_checkpoint(db: Connection, row: int, epoch: int, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint of a conversation, unless the saved one is recent enough."""
    head = db.execute("SELECT epoch, last FROM conversations WHERE row = ?", (row,)).fetchone()
    if head is None or head[0] != epoch or checkpoint.seq > head[1]:
        raise LeaseLost
    saved = db.execute("SELECT seq FROM checkpoints WHERE row = ?", (row,)).fetchone()
    if saved is None or checkpoint.seq >= saved[0] + CHECKPOINT_ENTRIES:
        db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (row, checkpoint.seq, checkpoint.data))


def checkpoint_of(db: Connection, conversation_id: ConversationId) -> Checkpoint | None:
    """Return the checkpoint of a conversation; None if there is none, or it is damaged."""
    row, last = _end_of(db, conversation_id)
    found = fetch_readable(db, "SELECT seq, data FROM checkpoints WHERE row = ?", (row,))
    for seq, data in found:
        if type(seq) is int and 0 < seq <= last and type(data) is bytes:
            return Checkpoint(seq=Seq(seq), data=data)
    return None


def epochs_of(db: Connection, rows: Sequence[int]) -> dict[int, int]:
    """Return the epochs of the rows that exist."""
    found: dict[int, int] = {}
    for begin in range(0, len(rows), CONVERSATIONS_A_STATEMENT):
        some = rows[begin : begin + CONVERSATIONS_A_STATEMENT]
        found |= dict(
            db.execute(f"SELECT row, epoch FROM conversations WHERE row IN ({placeholders(len(some))})", some)
        )
    return found


def head(db: Connection, conversation_id: ConversationId, is_leased: Callable[[int], bool]) -> Head:
    columns = f"row, last, epoch, archived, {OWNER}, {_SUMMARY_READ}"
    found = _named(db, columns, conversation_id)
    if found is None:
        raise UnknownConversation(conversation_id)
    row, last, epoch, archived, node, pid, address, since, *summary = found
    if not isinstance(last, int):
        raise Unreadable(conversation_id, "its last position is damaged")
    owner = _owner(node, pid, address, since)
    return Head(
        last=Seq(last),
        epoch=epoch,
        owner=owner if owner is not None and is_leased(row) else None,
        summary=_summary(*summary),
        archived=bool(archived),
    )


def find(db: Connection, query: Query, is_leased: Callable[[int], bool]) -> ConversationPage:
    where = ["typeof(updated_at) = 'real'"]  # a damaged time has no position in the list
    values: list[Any] = []
    if query.archived is not None:
        where.append("archived = ?")
        values.append(query.archived)
    if query.asked is not None:
        where.append(_ASKS)
        values.append(query.asked.encode())
    if query.cwd is not None:
        where.append("normalize_path(CAST(cwd AS BLOB)) = ?")
        values.append(normalize_path(query.cwd))
    if query.state is not None:
        where.append("state = ?")
        values.append(query.state)
    if query.after is not None:
        where.append("(updated_at, id) < (?, ?)")
        values += query.after
    if query.text is not None:
        where.append(_MENTIONS)
        values += [query.text.casefold()] * 2
    is_plain = query.asked is None and query.cwd is None and query.state is None and query.text is None

    def is_wanted(known: KnownConversation) -> bool:
        is_after = query.after is None or (known.updated_at, known.id) < query.after
        return is_plain and query.archived in (None, known.archived) and is_after

    found = _listed(db, " AND ".join(where), [*values, query.limit + 1], is_leased, is_wanted)
    return ConversationPage(items=tuple(found[: query.limit]), more=len(found) > query.limit)


_ASKS: Final = f"""EXISTS (
    SELECT 1 FROM entries
    WHERE entries.row = conversations.row AND type = '{record_type(QuestionAsked)}' AND instr(body, ?)
)"""
_MENTIONS: Final = f"""(title_contains(?, CAST(title AS BLOB)) OR EXISTS (
    SELECT 1 FROM entries
    WHERE entries.row = conversations.row AND type IN {SEARCHED} AND is_event
    AND contains_text(?, CAST(body AS BLOB))
))"""


def expired(db: Connection, archived_before: float, is_leased: Callable[[int], bool]) -> list[ConversationListing]:
    def is_wanted(known: KnownConversation) -> bool:
        return known.archived and known.updated_at < archived_before

    return _listed(db, "archived = 1 AND updated_at < ?", [archived_before, -1], is_leased, is_wanted)


def has_approvals(db: Connection, approval_ids: Collection[ApprovalId]) -> bool:
    try:
        asked = db.execute(_ALL_QUESTIONS).fetchall()
    except Exception as error:
        if not is_damage(error):
            raise
        every = f"{_ALL_QUESTIONS} AND row = ?"
        asked = [one for known in known_conversations(db) for one in fetch_readable(db, every, (known.row,))]
    return any(approval_id_in(body) in approval_ids for (body,) in asked)


_ALL_QUESTIONS: Final = (
    "SELECT CAST(body AS BLOB) FROM entries JOIN conversations USING (row)"
    f" WHERE type = '{record_type(QuestionAsked)}' AND NOT is_event"
)


def _listed(
    db: Connection,
    where: str,
    values: list[Any],
    is_leased: Callable[[int], bool],
    is_wanted: Callable[[KnownConversation], bool],
) -> list[ConversationListing]:
    """Return conversations, the latest activity first. The last of the values is the limit; -1 means no limit.

    `is_wanted` decides about a conversation whose row is damaged and which only an index lists.
    """
    wanted = f"SELECT row, id, archived, {_SUMMARY_READ} FROM conversations WHERE {where}"
    try:
        rows = db.execute(f"{wanted} ORDER BY updated_at DESC, id DESC LIMIT ?", values).fetchall()
    except Exception as error:
        if not is_damage(error):
            raise
        *values, limit = values
        if not (all_known := known_conversations(db)):
            raise
        rows = [row for known in all_known for row in _each(db, wanted, values, known, is_wanted)]
        rows.sort(key=lambda row: (row[-1], row[1]), reverse=True)
        rows = rows if limit < 0 else rows[:limit]
    return [
        ConversationListing(
            conversation_id=ConversationId(conversation_id),
            summary=_summary(*summary),
            archived=bool(archived),
            owned=is_leased(row),
        )
        for row, conversation_id, archived, *summary in rows
    ]


def _each(
    db: Connection,
    wanted: str,
    values: list[Any],
    known: KnownConversation,
    is_wanted: Callable[[KnownConversation], bool],
) -> list[tuple[Any, ...]]:
    """Return the columns of one conversation, if it belongs to the list."""
    try:
        return db.execute(f"{wanted} AND row = ?", (*values, known.row)).fetchall()
    except Exception as error:
        if not is_damage(error):
            raise
        damaged = (known.row, known.id, known.archived, b"", b"", b"", "idle", known.updated_at)
        return [damaged] if is_wanted(known) else []


# --- columns -----------------------------------------------------------------------------


NEWEST: Final = "(SELECT max(updated_at) FROM conversations WHERE archived = 0)"
"""The time of activity of the conversation that is listed first."""


def columns_of(summary: Summary, newest: object = None) -> tuple[str, str, str, str, float]:
    """Return the columns of `SUMMARY`. `newest` is the argument of `active_at`, for a conversation that is active
    now."""
    return summary.title, summary.cwd, summary.model, summary.state, active_at(summary, newest)


def _summary(title: bytes, cwd: bytes, model: bytes, state: Any, updated_at: Any) -> Summary:
    """Return the summary in a row; a damaged column has a default."""
    return Summary(
        title=as_text(title),
        cwd=as_text(cwd),
        model=as_text(model),
        state=state if state in STATES else "idle",
        updated_at=updated_at if type(updated_at) is float else 0.0,
    )


def as_text(kept: bytes) -> str:
    return kept.decode(errors="replace")


def _owner(node: str | None, pid: int | None, address: str | None, since: float | None) -> Owner | None:
    if pid is None:
        return None
    return Owner(node=node or "", pid=pid, address=address or "", since=since or 0.0)


# --- change detection --------------------------------------------------------------------

CONVERSATIONS_A_STATEMENT: Final = 400
"""The most conversations in one statement. Each takes two variables, and older releases of SQLite allow 999."""


class ChangeDetector:
    """Finds which of many logs have grown. Needs one query for all logs, and no query while no process writes.

    It remembers the last comparison and the data version of its connection. Each commit of another connection
    changes the data version.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        """The data version that each connection had at its last comparison, by the identity of the connection."""
        self._current: Mapping[ConversationId, Seq] = {}
        """The positions that the last comparison found to be current."""

    def find(self, db: Connection, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        """Return the conversations whose log ends after the given position, and those that do not exist."""
        # The version is read before the query, so that a commit between the two is found next time.
        (version,) = db.execute("PRAGMA data_version").fetchone()
        unknown = ends
        if self._versions.get(id(db)) == version:  # nothing was committed since any comparison
            current = self._current
            unknown = {one: end for one, end in ends.items() if current.get(one) != end}
        try:
            advanced = _advanced(db, list(unknown.items()))
        except Exception as error:
            if not is_damage(error):
                raise
            advanced = [one for one, end in unknown.items() if _has_advanced(db, one, end)]
        self._current = {one: ends[one] for one in ends.keys() - set(advanced)} if advanced else dict(ends)
        self._versions[id(db)] = version
        return advanced


def _has_advanced(db: Connection, conversation_id: ConversationId, end: Seq) -> bool:
    """Return whether the log of one conversation has grown, in a damaged database in which `_advanced` fails."""
    try:
        return head(db, conversation_id, is_leased=lambda row: False).last > end
    except Unreadable:
        return False
    except UnknownConversation:
        return True


def _advanced(db: Connection, ends: Sequence[tuple[ConversationId, Seq]]) -> list[ConversationId]:
    found: list[ConversationId] = []
    for begin in range(0, len(ends), CONVERSATIONS_A_STATEMENT):
        some = ends[begin : begin + CONVERSATIONS_A_STATEMENT]
        found += (
            one
            for (one,) in db.execute(
                f"WITH known (id, last) AS (VALUES {', '.join(['(?, ?)'] * len(some))})"
                " SELECT known.id FROM known LEFT JOIN conversations AS kept ON kept.id = known.id"
                " WHERE kept.last IS NULL OR typeof(kept.last) <> 'integer' OR kept.last > known.last",
                tuple(chain.from_iterable(some)),
            )
        )
    return found
