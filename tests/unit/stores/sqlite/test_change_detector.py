from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection

from kit.builders.databases import open_home
from parley.stores.sqlite.change_detector import ChangeDetector
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


def test_one_query_compares_many_logs_with_few_different_statements(tmp_path: Path) -> None:
    with connections(tmp_path / "home") as (reading, _):
        asked: set[str] = set()
        reading.set_trace_callback(lambda text: asked.add(text) if "known" in text else None)
        for number in range(1, 700):
            gone = {ConversationId(f"{one}"): Seq(1) for one in range(number)}
            assert ChangeDetector().find(reading, {**gone, FIRST: Seq(2)}) == [*gone, FIRST]
        reading.set_trace_callback(None)
        shapes = {one.count("(") for one in asked}

    assert len(shapes) == 9  # from one value to 256
