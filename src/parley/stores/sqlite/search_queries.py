"""Searches in messages. Each search examines a window of entries, beginning with the entry that was stored last.

Entries have ascending row ids in the order in which they were stored. A window is a range of row ids or, if the
search is limited to one conversation, a range of positions. The size of a window is limited, so a search is fast
without a text index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from parley.ports.store import SEARCH_BYTES, SEARCH_ENTRIES, SearchHit, SearchPage, SearchQuery
from parley.stores.search import SEARCHED, match_in
from parley.stores.sqlite.columns import as_text
from parley.stores.sqlite.damage import fetch_readable, is_damage, unreadable_if_damaged
from parley.stores.sqlite.queries import row_of
from parley.wire.ids import ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["search"]

# SQLite keeps the table order of a CROSS JOIN. With another join, it would scan all conversations for each window.
_MESSAGES: Final = (
    "SELECT {0}, id, CAST(title AS BLOB), seq, at, type, CAST(body AS BLOB) FROM entries"
    f" CROSS JOIN conversations USING (row) WHERE is_event AND type IN {SEARCHED}"
)
_IN_ALL: Final = (
    f"{_MESSAGES.format('entries.rowid')} AND archived = 0 AND entries.rowid BETWEEN ? AND ?"
    " ORDER BY entries.rowid DESC"
)
_IN_ONE: Final = f"{_MESSAGES.format('seq')} AND entries.row = ? AND seq BETWEEN ? AND ? ORDER BY seq DESC"


def search(db: Connection, query: SearchQuery) -> SearchPage:
    if query.conversation is None:
        return _search_all(db, query)
    row = row_of(db, query.conversation)
    with unreadable_if_damaged(query.conversation):
        first, last = _window(db, query, "SELECT max(seq) FROM entries WHERE row = ?", (row,))
        return _page(query, db.execute(_IN_ONE, (row, first, last)), first)


def _search_all(db: Connection, query: SearchQuery) -> SearchPage:
    first, last = _window(db, query, "SELECT max(rowid) FROM entries")
    try:
        return _page(query, db.execute(_IN_ALL, (first, last)), first)
    except Exception as error:
        if not is_damage(error):
            raise
    # Entries that cannot be read are left out.
    readable = (
        one for number in range(last, first - 1, -1) for one in fetch_readable(db, _IN_ALL, (number, number))
    )
    return _page(query, readable, first)


def _window(db: Connection, query: SearchQuery, end: str, values: tuple[int, ...] = ()) -> tuple[int, int]:
    """Return the lowest and the highest number of the entries to examine. The number of an entry is its row id or,
    for a search in one conversation, its position. `end` is an SQL query that returns the highest number of any
    entry, and `values` are its parameters.
    """
    (last,) = db.execute(end, values).fetchone()
    last = last if type(last) is int else 0
    if query.before is not None:
        last = min(last, query.before - 1)
    return max(1, last - SEARCH_ENTRIES + 1), last


def _page(query: SearchQuery, messages: Iterable[tuple[Any, ...]], first: int) -> SearchPage:
    """Search `messages` for the text of the query, and return the page of hits.

    The first column of each message is its number (see `_window`). The numbers are in descending order. `first` is
    the lowest number of the window.
    """
    text, hits, size = query.text.casefold(), list[SearchHit](), 0
    for number, conversation_id, title, seq, at, kind, body in messages:
        if type(at) is float and (found := match_in(text, body)) is not None:
            hit = SearchHit(
                conversation_id=ConversationId(conversation_id),
                title=as_text(title),
                seq=Seq(seq),
                at=at,
                type=kind,
                snippet=found.snippet,
                start=found.start,
                end=found.end,
            )
            hits.append(hit)
        size += len(body)
        if len(hits) == query.limit or size > SEARCH_BYTES:
            first = number
            break
    return SearchPage(hits=tuple(hits), next=first if first > 1 else None)
