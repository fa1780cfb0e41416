"""Finds which of many logs have grown: with one query for all, and with none while no process writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from parley.errors import UnknownConversation, Unreadable
from parley.stores.damage import is_damage
from parley.stores.rows import head
from parley.wire.ids import ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["ChangeDetector"]

CONVERSATIONS_A_STATEMENT: Final = 400
"""Each takes two variables of a statement; older releases of SQLite allow 999."""


class ChangeDetector:
    """Compares positions with the ends of the logs, and remembers the last comparison and its database version.

    SQLite has a version for each connection: it changes with the commits of all other connections.
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
    """Like `_advanced`, for one conversation of a damaged database."""
    try:
        return head(db, conversation_id, taken=lambda row: False).last > end
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
