from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection

from parley.stores.sqlite.change_detector import ChangeDetector
from parley.stores.sqlite.database import open_home
from parley.wire.ids import ConversationId, Seq

FIRST, SECOND, GONE = (ConversationId(name) for name in ("first", "second", "gone"))


@contextmanager
def connections(home: Path) -> Iterator[tuple[Connection, Connection]]:
    """Yield a connection that reads and one that writes, to a database with two logs that end at position 3."""
    opened = open_home(str(home))
    try:
        for name in (FIRST, SECOND):
            opened.writer.execute(
                "INSERT INTO conversations (id, last, archived, title, cwd, model, state, updated_at)"
                " VALUES (?, 3, 0, '', '', '', 'idle', 1.0)",
                (name,),
            )
        yield opened._readers[0], opened.writer
    finally:
        opened.close()
        opened.lease_locks.close()


def test_logs_that_have_grown_and_conversations_that_are_gone_are_found(tmp_path: Path) -> None:
    with connections(tmp_path / "home") as (reading, writing):
        detector = ChangeDetector()
        known = {FIRST: Seq(3), SECOND: Seq(2), GONE: Seq(1)}
        assert sorted(detector.find(reading, known)) == [GONE, SECOND]
        writing.execute("UPDATE conversations SET last = 4 WHERE id = ?", (FIRST,))
        assert detector.find(reading, {FIRST: Seq(3)}) == [FIRST]


def test_nothing_is_compared_again_while_no_process_writes(tmp_path: Path) -> None:
    with connections(tmp_path / "home") as (reading, writing):
        detector, asked = ChangeDetector(), list[str]()
        known = {FIRST: Seq(3), SECOND: Seq(3)}
        assert detector.find(reading, known) == []
        reading.set_trace_callback(asked.append)
        assert detector.find(reading, known) == []
        assert [one for one in asked if "conversations" in one] == []
        writing.execute("UPDATE conversations SET last = 4 WHERE id = ?", (SECOND,))
        assert detector.find(reading, known) == [SECOND]
        reading.set_trace_callback(None)
