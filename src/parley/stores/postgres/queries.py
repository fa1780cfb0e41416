"""The SQL that reads logs and lists conversations. The SQL for searches is in `search.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from parley.conversation.log import Entry
from parley.conversation.records import ApprovalRequest, CommandOutput, record_type
from parley.errors import UnknownConversation, Unreadable
from parley.ports.store import (
    PAGE,
    STATES,
    Checkpoint,
    ConversationListing,
    ConversationPage,
    Head,
    Owner,
    Query,
    Viewer,
)
from parley.stores.blobs import decompress, restore
from parley.stores.postgres import trigrams
from parley.stores.postgres.driver import Connection
from parley.stores.postgres.nodes import ALIVE
from parley.stores.postgres.rows import SUMMARY, digest_of_key, digest_of_path, pattern_of, summary_in
from parley.wire.ids import ApprovalId, ConversationId, Seq

__all__ = [
    "changed_since",
    "checkpoint_of",
    "entries_after",
    "entries_before",
    "find",
    "has_approvals",
    "head",
    "log_bytes",
    "number_of",
    "position_of",
]

IN_THREAD_BYTES: Final = 256 * 1024
"""The minimum compressed size, in bytes, of the blobs of a page that is converted in a thread. Decompressing such
blobs on the event loop would block it.
"""

_APPROVAL_REQUEST: Final = record_type(ApprovalRequest)
_OUTPUT: Final = record_type(CommandOutput).encode()


async def number_of(db: Connection, conversation_id: ConversationId) -> int:
    """Return the number of the given conversation. Other tables refer to the conversation by this number.

    Raises:
        UnknownConversation: there is no conversation with this id.
    """
    number: int | None = await db.fetchval(
        "SELECT number FROM conversations WHERE id = $1", conversation_id.encode()
    )
    if number is None:
        raise UnknownConversation(conversation_id)
    return number


async def log_bytes(db: Connection, conversation_id: ConversationId) -> int:
    """Return the total size of the given conversation's entries, in bytes. The bodies are not read."""
    size: int = await db.fetchval(
        "SELECT coalesce(sum(e.size), 0)::bigint FROM conversations c JOIN entries e ON e.conversation = c.number"
        " WHERE c.id = $1",
        conversation_id.encode(),
    )
    return size


# --- pages of a log ----------------------------------------------------------------------


def _page_sql(bounds: str, order: str, visible: str = "true") -> str:
    """Return SQL for a page of entries. The page ends with the entry whose size makes the total size exceed `$4`
    bytes.

    `bounds` is the SQL condition for the positions of the page, `order` is the direction in which the page is
    filled, and `visible` is an additional condition. If no entry matches, the SQL returns one row with only the
    number and the last position of the conversation.
    """
    return f"""
    SELECT c.number, c.last, e.seq, e.at, e.type, e.is_event, e.is_cut, e.body FROM conversations c
    LEFT JOIN LATERAL (
        SELECT * FROM (
            SELECT seq, at, type, is_event, is_cut, body, sum(size) OVER (ORDER BY seq {order}) - size AS before
            FROM entries WHERE conversation = c.number AND {bounds} AND {visible}
        ) AS sized WHERE before <= $4
    ) AS e ON true
    WHERE c.id = $1 ORDER BY e.seq
    """


_AFTER: Final = "seq > $2 AND seq <= least($2 + $3, c.last)"
_ENTRIES_AFTER: Final = _page_sql(_AFTER, "ASC")
_VISIBLE_AFTER: Final = _page_sql(_AFTER, "ASC", "(is_event OR type = $5 OR seq = least($2 + $3, c.last))")
_ENTRIES_BEFORE: Final = _page_sql("seq <= least($2 - 1, c.last) AND seq > least($2 - 1, c.last) - $3", "DESC")


async def entries_after(
    db: Connection, conversation_id: ConversationId, after: Seq, limit: int, max_bytes: int, *, visible_only: bool
) -> list[Entry]:
    """Return a page of entries after the position `after`, in ascending order, as `Store.read` does."""
    values = (conversation_id.encode(), after, min(limit, PAGE), max_bytes)
    if visible_only:
        rows = await db.fetch(_VISIBLE_AFTER, *values, _OUTPUT)
    else:
        rows = await db.fetch(_ENTRIES_AFTER, *values)
    number, last, found = _found(conversation_id, rows)
    positions = [row[0] for row in found]
    is_whole = positions == list(range(after + 1, after + len(found) + 1))
    if (not visible_only and not is_whole) or (not found and last > after and limit > 0):
        raise Unreadable(conversation_id, f"an entry after {after} is missing")
    return await _restored(db, conversation_id, number, found)


async def entries_before(
    db: Connection, conversation_id: ConversationId, before: Seq, limit: int, max_bytes: int
) -> list[Entry]:
    """Return the last page of entries before the position `before`, in ascending order, as `Store.read_before`
    does.
    """
    values = (conversation_id.encode(), before, min(limit, PAGE), max_bytes)
    number, last, found = _found(conversation_id, await db.fetch(_ENTRIES_BEFORE, *values))
    end = min(before - 1, last)
    if [row[0] for row in found] != list(range(end - len(found) + 1, end + 1)) or (
        not found and end > 0 and limit > 0
    ):
        raise Unreadable(conversation_id, f"an entry before {before} is missing")
    return await _restored(db, conversation_id, number, found)


def _found(conversation_id: ConversationId, rows: Sequence[Sequence[Any]]) -> tuple[int, int, list[Sequence[Any]]]:
    """Return the number and the last position of a conversation, and the columns of its entries. `rows` is the
    result of a query that `_page_sql` has returned.

    Raises:
        UnknownConversation: `rows` is empty, because the conversation does not exist.
    """
    if not rows:
        raise UnknownConversation(conversation_id)
    number, last, *_ = rows[0]
    return number, last, [row[2:] for row in rows if row[2] is not None]


async def _restored(
    db: Connection, conversation_id: ConversationId, number: int, rows: Sequence[Sequence[Any]]
) -> list[Entry]:
    """Convert rows to entries of the conversation with the number `number`. Restore the parts of the entries,
    such as images, that are stored separately as blobs.
    """
    cuts: dict[int, list[tuple[int, bytes]]] = {}
    size = 0
    if cut := [row[0] for row in rows if row[4]]:
        for seq, position, data in await db.fetch(_CUTS, number, cut):
            cuts.setdefault(seq, []).append((position, data))
            size += len(data)
    if size < IN_THREAD_BYTES:
        return _entries(conversation_id, rows, cuts)
    return await asyncio.get_running_loop().run_in_executor(None, _entries, conversation_id, rows, cuts)


_CUTS: Final = """
    SELECT cuts.seq, cuts.position, blobs.data FROM cuts JOIN blobs USING (conversation, hash)
    WHERE conversation = $1 AND cuts.seq = ANY($2::bigint[]) ORDER BY cuts.seq, cuts.position
"""


def _entries(
    conversation_id: ConversationId,
    rows: Iterable[Sequence[Any]],
    cuts: Mapping[int, Iterable[tuple[int, bytes]]],
) -> list[Entry]:
    found: list[Entry] = []
    for seq, at, kind, is_event, is_cut, body in rows:
        try:
            if is_cut:
                body = restore(body, ((position, decompress(data)) for position, data in cuts[seq]))
            found.append(Entry.stored(Seq(seq), at, kind.decode(), is_event=is_event, body=body))
        except (KeyError, ValueError) as error:
            raise Unreadable(conversation_id, f"entry {seq} is damaged ({error})") from error
    return found


# --- one conversation --------------------------------------------------------------------


async def position_of(db: Connection, conversation_id: ConversationId, kind: str, key: str) -> Seq | None:
    """Return the position of the first entry with the type `kind` and the key `key`; None if there is no such
    entry.
    """
    row = await db.fetchrow(
        "SELECT (SELECT min(seq) FROM entries WHERE key = $2 AND conversation = c.number)"
        " FROM conversations c WHERE id = $1",
        conversation_id.encode(),
        digest_of_key(kind, key),
    )
    if row is None:
        raise UnknownConversation(conversation_id)
    return None if row[0] is None else Seq(row[0])


async def checkpoint_of(db: Connection, conversation_id: ConversationId) -> Checkpoint | None:
    row = await db.fetchrow(
        "SELECT p.seq, p.data FROM conversations c"
        " LEFT JOIN checkpoints p ON p.conversation = c.number AND p.seq <= c.last WHERE c.id = $1",
        conversation_id.encode(),
    )
    if row is None:
        raise UnknownConversation(conversation_id)
    return None if row[0] is None else Checkpoint(seq=Seq(row[0]), data=row[1])


_HEAD: Final = f"""
    SELECT c.last, c.epoch, c.archived, h.number IS NOT NULL AND {ALIVE},
        h.node, h.pid, c.owner_address, c.owner_since,
        {SUMMARY}
    FROM conversations c LEFT JOIN holders h ON h.number = c.holder WHERE c.id = $1
"""


async def head(db: Connection, conversation_id: ConversationId) -> Head:
    row = await db.fetchrow(_HEAD, conversation_id.encode())
    if row is None:
        raise UnknownConversation(conversation_id)
    last, epoch, archived, is_owned, node, pid, address, since, *summary = row
    owner = None
    if is_owned:
        owner = Owner(node=node.decode(), pid=pid, address=(address or b"").decode(), since=since or 0.0)
    return Head(last=Seq(last), epoch=epoch, owner=owner, summary=summary_in(*summary), archived=archived)


async def changed_since(db: Connection, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
    rows = await db.fetch(
        "SELECT n.id FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS n(id, last, place)"
        " LEFT JOIN conversations c ON c.id = n.id WHERE c.last IS NULL OR c.last > n.last ORDER BY n.place",
        [one.encode() for one in ends],
        list(ends.values()),
    )
    return [ConversationId(row[0].decode()) for row in rows]


async def has_approvals(db: Connection, approval_ids: Collection[ApprovalId]) -> bool:
    found: bool = await db.fetchval(
        "SELECT EXISTS (SELECT 1 FROM entries e JOIN conversations c ON c.number = e.conversation"
        " WHERE e.key = ANY($1::bytea[]))",
        [digest_of_key(_APPROVAL_REQUEST, one) for one in approval_ids],
    )
    return found


# --- lists -------------------------------------------------------------------------------

_ALIVE_HOLDERS: Final = f"SELECT array_agg(h.number) FROM holders h WHERE {ALIVE}"
_IS_UNREAD: Final = """(c.ended_seq > c.read_seq AND c.ended_at > {since} AND NOT EXISTS (
    SELECT 1 FROM read_marks m WHERE m.conversation = c.number AND m.reader = {reader} AND m.seq >= c.ended_seq
))"""


class _Values:
    """Collects the values of the parameters of a statement while its SQL is being composed."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def add(self, value: object, kind: str) -> str:
        """Add a value, and return its placeholder. `kind` is the SQL type of the value."""
        self.all.append(value)
        return f"${len(self.all)}::{kind}"


async def find(db: Connection, query: Query) -> ConversationPage:
    values = _Values()
    where, unread = _conditions(query, values)
    if query.text is not None:
        where.append(await _text_condition(db, query.text, values))
    limit = values.add(query.limit + 1, "bigint")
    order = f"ORDER BY updated_at DESC, id DESC LIMIT {limit}"
    columns = f"c.id, c.archived, c.holder, {unread} AS is_unread, {SUMMARY}"
    # The index begins with the column `archived`, so archived conversations and other conversations are queried
    # separately, and the results are merged.
    lists = " UNION ALL ".join(
        f"(SELECT {columns} FROM conversations c WHERE {' AND '.join((one, *where))} {order})"
        for archived, one in ((False, "NOT c.archived"), (True, "c.archived"))
        if query.archived in (None, archived)
    )
    rows = await db.fetch(
        f"WITH alive AS MATERIALIZED ({_ALIVE_HOLDERS}) SELECT id, archived,"
        f" coalesce(holder = ANY((SELECT * FROM alive)::integer[]), false), is_unread, {SUMMARY.replace('c.', '')}"
        f" FROM ({lists}) AS found {order}",
        *values.all,
    )
    items = tuple(
        ConversationListing(
            conversation_id=ConversationId(name.decode()),
            summary=summary_in(*summary),
            archived=archived,
            owned=owned,
            unread=is_unread,
        )
        for name, archived, owned, is_unread, *summary in rows[: query.limit]
    )
    return ConversationPage(items=items, more=len(rows) > query.limit)


def _conditions(query: Query, values: _Values) -> tuple[list[str], str]:
    """Return the SQL conditions for the conversations that match a query, except for the condition for
    `Query.text`. Also return an SQL expression that is true if the viewer has not read the conversation. Add the
    parameters to `values`.
    """
    where: list[str] = []
    viewer, unread = query.viewer, "false"
    if viewer is not None or query.unread is not None:
        viewer = viewer or Viewer(identity="")
        since, reader = values.add(viewer.since, "double precision"), values.add(viewer.identity.encode(), "bytea")
        unread = _IS_UNREAD.format(since=since, reader=reader)
    if query.conversation is not None:
        where.append(f"c.id = {values.add(query.conversation.encode(), 'bytea')}")
    if query.cwd is not None:
        where.append(f"c.directory = {values.add(digest_of_path(query.cwd), 'bytea')}")
    if query.state is not None:
        # The state is a literal, as in the condition of the partial index.
        where.append(f"c.state = '{query.state if query.state in STATES else ''}'")
    if query.unread is not None:
        outcome = "c.has_failed" if query.unread == "failed" else "NOT c.has_failed"
        where.append(f"c.state = 'idle' AND {unread} AND {outcome}")
        if query.viewer is None:
            unread = "false"
    if query.asked is not None:
        key = values.add(digest_of_key(_APPROVAL_REQUEST, query.asked), "bytea")
        where.append(f"c.number IN (SELECT conversation FROM entries WHERE key = {key})")
    if query.after is not None:
        at, name = values.add(query.after[0], "double precision"), values.add(query.after[1].encode(), "bytea")
        where.append(f"(c.updated_at, c.id) < ({at}, {name})")
    return where, unread


async def _text_condition(db: Connection, text: str, values: _Values) -> str:
    """Return an SQL condition that is true if the title or a message of a conversation contains `text`. Add the
    parameters of the condition to `values`.
    """
    pattern = pattern_of(text)
    if await trigrams.can_use_index(db, text):
        async with trigrams.index_scans(db):
            count, candidates = await db.fetchrow(_CANDIDATES, pattern, trigrams.MAX_CANDIDATES) or (0, [])
        if count < trigrams.MAX_CANDIDATES:
            placeholder = values.add(candidates, "bigint[]")
            return f"c.number = ANY({placeholder})"
    placeholder = values.add(pattern, "text")
    # PostgreSQL would replace EXISTS by one scan of all messages. The expression with LIMIT is evaluated only for
    # the conversations before the end of the page.
    return (
        f"(c.title LIKE {placeholder} OR"
        f" (SELECT true FROM entries e WHERE e.conversation = c.number AND e.words LIKE {placeholder} LIMIT 1))"
    )


_CANDIDATES: Final = """
    SELECT count(*), coalesce(array_agg(DISTINCT number), '{}') FROM (
        (SELECT conversation AS number FROM titles WHERE title LIKE $1 LIMIT $2)
        UNION ALL (SELECT conversation FROM entries WHERE words LIKE $1 LIMIT $2)
        LIMIT $2
    ) AS found
"""
