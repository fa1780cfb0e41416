"""Searches in messages. Each search examines a window of messages, beginning with the message that was stored last.

Messages are numbered in the order of their arrival. A window is a range of these numbers or, for a search in one
conversation, a range of positions. If the database has a trigram index, the index is used to find
the message with which the next window begins.
"""

from __future__ import annotations

from typing import Final

from parley.ports.store import SEARCH_BYTES, SEARCH_ENTRIES, SearchHit, SearchPage, SearchQuery
from parley.stores.postgres import trigrams
from parley.stores.postgres.driver import Connection
from parley.stores.postgres.queries import number_of
from parley.stores.postgres.rows import pattern_of, summary_in
from parley.stores.search import match_in
from parley.wire.ids import ConversationId, Seq

__all__ = ["search"]


def _window_sql(number: str, table: str, condition: str) -> str:
    """Return SQL for the hits in a window, the latest first. `number` is the expression for the number of a
    message, and `table` and `condition` select the messages to search.

    An additional row contains the lowest number in the window and the number of examined messages. The window ends
    after `$3` messages, or with the message whose size makes the total size exceed `$4` bytes.
    """
    return f"""
    WITH numbered AS (
        SELECT {number} AS number, e.conversation, e.seq, e.at, e.type, e.body, e.size, e.words
        FROM {table} WHERE e.arrival IS NOT NULL AND {condition} ORDER BY {number} DESC LIMIT $3
    ), sized AS (
        SELECT *, sum(size) OVER (ORDER BY number DESC) - size AS before FROM numbered
    ), examined AS MATERIALIZED (
        SELECT * FROM sized WHERE before <= $4
    ), hits AS (
        SELECT * FROM examined WHERE words LIKE $1 ORDER BY number DESC LIMIT $5
    )
    SELECT w.number, w.seq, w.at, w.type, w.body, c.id, c.state, c.updated_at, c.details
    FROM hits w JOIN conversations c ON c.number = w.conversation
    UNION ALL SELECT min(number), count(*), NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM examined
    """


_IN_ALL: Final = _window_sql(
    "e.arrival",
    "entries e JOIN conversations k ON k.number = e.conversation",
    "e.arrival < $2 AND NOT k.archived",
)
_IN_ONE: Final = _window_sql("e.seq", "entries e", "e.seq < $2 AND e.conversation = $6")
_END: Final = 2**62


async def search(db: Connection, query: SearchQuery) -> SearchPage:
    pattern = pattern_of(query.text)
    before = _END if query.before is None else query.before
    values = (pattern, before, SEARCH_ENTRIES, SEARCH_BYTES, query.limit)
    if query.conversation is None:
        rows = await db.fetch(_IN_ALL, *values)
    else:
        rows = await db.fetch(_IN_ONE, *values, await number_of(db, query.conversation))
    *messages, (first, examined, *_) = rows
    hits: list[SearchHit] = []
    text = query.text.casefold()
    for _, seq, at, kind, body, name, state, updated_at, details in messages:
        if (found := match_in(text, body)) is None:
            continue
        hit = SearchHit(
            conversation_id=ConversationId(name.decode()),
            title=summary_in(state, updated_at, details, 0, None).title,
            seq=Seq(seq),
            at=at,
            type=kind.decode(),
            snippet=found.snippet,
            start=found.start,
            end=found.end,
        )
        hits.append(hit)
    if messages and len(messages) == query.limit:
        return SearchPage(hits=tuple(hits), next=messages[-1][0])
    if not examined:
        return SearchPage(hits=tuple(hits), next=None)
    following = first
    if query.conversation is None and await trigrams.can_use_index(db, query.text):
        following = await _following(db, pattern, first)
    return SearchPage(hits=tuple(hits), next=following)


async def _following(db: Connection, pattern: str, before: int) -> int | None:
    """Return the number below which the next window begins. `before` is the lowest number in the current window.

    The next window begins with the next earlier message that matches `pattern`. Return None if no earlier message
    matches. If at least `MAX_CANDIDATES` messages match, return `before`, so that the next window directly follows
    the current one.
    """
    async with trigrams.index_scans(db):
        count, latest = await db.fetchrow(_CANDIDATES, pattern, before, trigrams.MAX_CANDIDATES) or (0, None)
    if count == trigrams.MAX_CANDIDATES:
        return before
    return None if latest is None else int(latest) + 1


_CANDIDATES: Final = """
    SELECT count(*), max(arrival) FILTER (WHERE arrival < $2)
    FROM (SELECT arrival FROM entries WHERE words LIKE $1 LIMIT $3) AS found
"""
