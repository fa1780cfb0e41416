"""Detects which logs other processes have extended, without reading the logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from parley.errors import UnknownConversation, Unreadable
from parley.stores.sqlite.batch import groups_of
from parley.stores.sqlite.damage import is_damage
from parley.stores.sqlite.queries import head
from parley.wire.ids import ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["ChangeDetector"]


class ChangeDetector:
    """Detects which logs have entries after a given position.

    One query compares many logs. An unchanged log is compared again only after another connection has committed a
    transaction. The detector stores the result of its last comparison and the data version of the connection. Each
    commit on another connection changes the data version.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        """Maps `id(connection)` of each connection to the data version (`PRAGMA data_version`) that the connection
        had at its last comparison.
        """
        self._current: Mapping[ConversationId, Seq] = {}
        """Maps each conversation that was unchanged at the most recent comparison to the last position of
        its log.
        """

    def find(self, db: Connection, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        """Return the conversations in `ends` whose log has entries after the position in `ends`, and those that no
        longer exist.
        """
        # The version is read before the query, so that the next call finds a commit between the two.
        (version,) = db.execute("PRAGMA data_version").fetchone()
        unknown = ends
        if self._versions.get(id(db)) == version:  # no other connection has committed since the last comparison
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
    """Return whether the log of the given conversation ends after the position `end`, or the conversation no longer
    exists. Return False if the row of the conversation is damaged.

    This query is used in a damaged database, in which the query for all conversations fails.
    """
    try:
        return head(db, conversation_id, is_leased=lambda row: False).last > end
    except Unreadable:
        return False
    except UnknownConversation:
        return True


def _advanced(db: Connection, ends: Sequence[tuple[ConversationId, Seq]]) -> list[ConversationId]:
    found: list[ConversationId] = []
    for some in groups_of(ends):
        found += (
            one
            for (one,) in db.execute(
                f"WITH known (id, last) AS (VALUES {', '.join(['(?, ?)'] * len(some))})"
                " SELECT DISTINCT known.id FROM known LEFT JOIN conversations AS kept ON kept.id = known.id"
                " WHERE kept.last IS NULL OR typeof(kept.last) <> 'integer' OR kept.last > known.last",
                tuple(chain.from_iterable(some)),
            )
        )
    return found
