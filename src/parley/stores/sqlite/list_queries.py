"""The SQL that lists conversations. A listing succeeds even if rows are damaged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from parley.conversation.records import ApprovalRequest, record_type
from parley.conversation.state import FAILURES
from parley.ports.store import STATES, ConversationListing, ConversationPage, Query, Summary, Viewer
from parley.stores.search import SEARCHED, approval_id_in, normalize_path
from parley.stores.sqlite.batch import groups_of, placeholders
from parley.stores.sqlite.columns import SUMMARY_READ, summary_of
from parley.stores.sqlite.damage import KnownConversation, fetch_readable, is_damage, known_conversations
from parley.wire.ids import ApprovalId, ConversationId

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["find", "has_approvals"]


def find(db: Connection, query: Query, is_leased: Callable[[int], bool]) -> ConversationPage:
    where = ["typeof(updated_at) = 'real'"]  # a conversation whose time is damaged has no position in the list
    values: list[Any] = []
    if query.archived is not None:
        # With the plus sign, SQLite uses the index of unread conversations instead of the index by activity.
        where.append("archived = ?" if query.unread is None else "+archived = ?")
        values.append(query.archived)
    if query.asked is not None:
        where.append(_ASKS)
        values.append(query.asked)
    if query.conversation is not None:
        where.append("id = ?")
        values.append(query.conversation)
    if query.cwd is not None:
        where.append("normalize_path(CAST(cwd AS BLOB)) = ?")
        values.append(normalize_path(query.cwd))
    if query.state is not None:
        where.append(_STATE_IS[query.state])  # the state is a literal, as in the condition of the partial index
    if query.unread is not None:
        viewer = query.viewer or Viewer(identity="")
        where.append(f"{_UNREAD} AND ended_why {'IN' if query.unread == 'failed' else 'NOT IN'} {FAILURES}")
        values += [viewer.since, viewer.identity]
    if query.after is not None:
        where.append("(updated_at, id) < (?, ?)")
        values += query.after
    if query.text is not None:
        where.append(_MENTIONS)
        values += [query.text.casefold()] * 2
    filters = (query.asked, query.cwd, query.state, query.unread, query.text)
    is_plain = all(one is None for one in filters)

    def is_wanted(known: KnownConversation) -> bool:
        is_after = query.after is None or (known.updated_at, known.id) < query.after
        is_listed = query.archived in (None, known.archived) and query.conversation in (None, known.id)
        return is_plain and is_listed and is_after

    found = _listed(db, " AND ".join(where), [*values, query.limit + 1], is_leased, is_wanted, query.viewer)
    return ConversationPage(items=tuple(found[: query.limit]), more=len(found) > query.limit)


_STATE_IS: Final = {state: f"state = '{state}'" for state in STATES}
_UNREAD: Final = """state = 'idle' AND ended_seq > read_seq AND ended_at > ? AND NOT EXISTS (
    SELECT 1 FROM read_marks
    WHERE read_marks.row = conversations.row AND reader = ? AND read_marks.seq >= ended_seq
)"""
_ASKS: Final = f"""EXISTS (
    SELECT 1 FROM entries
    WHERE entries.row = conversations.row AND type = '{record_type(ApprovalRequest)}' AND key = ?
)"""
_MENTIONS: Final = f"""(title_contains(?, CAST(title AS BLOB)) OR EXISTS (
    SELECT 1 FROM entries
    WHERE entries.row = conversations.row AND type IN {SEARCHED} AND is_event
    AND contains_text(?, CAST(body AS BLOB))
))"""


def has_approvals(db: Connection, approval_ids: Collection[ApprovalId]) -> bool:
    try:
        asked = db.execute(_ALL_APPROVALS).fetchall()
    except Exception as error:
        if not is_damage(error):
            raise
        every = f"{_ALL_APPROVALS} AND row = ?"
        asked = [one for known in known_conversations(db) for one in fetch_readable(db, every, (known.row,))]
    return any(approval_id_in(body) in approval_ids for (body,) in asked)


_ALL_APPROVALS: Final = (
    "SELECT CAST(body AS BLOB) FROM entries JOIN conversations USING (row)"
    f" WHERE type = '{record_type(ApprovalRequest)}' AND NOT is_event"
)


def _listed(
    db: Connection,
    where: str,
    values: list[Any],
    is_leased: Callable[[int], bool],
    is_wanted: Callable[[KnownConversation], bool],
    viewer: Viewer | None = None,
) -> list[ConversationListing]:
    """Return the conversations that match the SQL condition `where`, the most recently active first.

    `values` contains the values of the SQL parameters in `where`, followed by the maximum number of conversations.
    `is_leased` returns whether the lease lock of a row is held. If the row of a conversation is damaged, `where`
    cannot be evaluated, and `is_wanted` determines whether the conversation belongs to the list. `viewer` is the
    principal for whom conversations count as unread; if it is None, no conversation counts as unread.
    """
    wanted = f"SELECT row, id, archived, read_seq, {SUMMARY_READ} FROM conversations WHERE {where}"
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
        rows = rows[:limit]
    summaries = [(row, read_seq, summary_of(*summary)) for row, _, _, read_seq, *summary in rows]
    unread = set() if viewer is None else _unread(db, viewer, summaries)
    return [
        ConversationListing(
            conversation_id=ConversationId(conversation_id),
            summary=summary,
            archived=bool(archived),
            owned=is_leased(row),
            unread=row in unread,
        )
        for (row, conversation_id, archived, *_), (_, _, summary) in zip(rows, summaries, strict=True)
    ]


def _unread(db: Connection, viewer: Viewer, summaries: Sequence[tuple[int, Any, Summary]]) -> set[int]:
    """Return the row numbers of the conversations in which the viewer has not read the end of the last turn.

    Each item of `summaries` contains the row number of a conversation, the position `read_seq` up to which the
    conversation counts as read by every principal, and the summary. A damaged read mark counts as missing.
    """
    ends = {
        row: outcome.seq
        for row, read_seq, summary in summaries
        if (outcome := summary.outcome) is not None and outcome.at > viewer.since
        if type(read_seq) is not int or outcome.seq > read_seq
    }
    for some in groups_of(list(ends)):
        marks = f"SELECT row, seq FROM read_marks WHERE row IN ({placeholders(len(some))}) AND reader = ?"
        for row, seq in fetch_readable(db, marks, (*some, viewer.identity)):
            if seq >= ends[row]:
                del ends[row]
    return set(ends)


def _each(
    db: Connection,
    wanted: str,
    values: list[Any],
    known: KnownConversation,
    is_wanted: Callable[[KnownConversation], bool],
) -> list[tuple[Any, ...]]:
    """Read the conversation `known` in a damaged database with the query `wanted` and its parameters `values`.
    Return the columns of the conversation in a list, or an empty list if the conversation does not match the query.

    If the row of the conversation is damaged, the columns contain default values. `is_wanted` then determines
    whether the conversation matches.
    """
    try:
        return db.execute(f"{wanted} AND row = ?", (*values, known.row)).fetchall()
    except Exception as error:
        if not is_damage(error):
            raise
        no_outcome = (0, None, None, None, None)
        damaged = (known.row, known.id, known.archived, 0, b"", b"", b"", "idle", *no_outcome, known.updated_at)
        return [damaged] if is_wanted(known) else []
