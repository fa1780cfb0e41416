"""Positions, open items, and the next entry or delta for a reader at a position."""

from __future__ import annotations

import json

import pytest

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    agent_reasoning_raw_content,
    background_event,
    error,
    task_complete,
    task_started,
    user_message,
)
from kit.builders.logs import AT, log_of, write
from kit.builders.records import turn_ended, turn_started
from parley.conversation.log import (
    DISCARDS_OPEN,
    EARLIER,
    ENDS,
    Cursor,
    Delta,
    Earlier,
    Entry,
    ItemKind,
    Log,
    LogPayload,
    encode_delta,
)
from parley.conversation.output import OutputDelta
from parley.wire.events import EventMsg
from parley.wire.ids import START, Seq


def said(log: Log, cursor: Cursor) -> list[str]:
    """Return everything that the reader lacks: an entry by its type, a delta as `item@offset:text`."""
    shown: list[str] = []
    while (thing := cursor.next(log)) is not None:
        assert not isinstance(thing, Earlier)
        shown.append(
            thing.type if isinstance(thing, Entry) else f"{thing.item.id}@{thing.offset}:{words_of(thing)}"
        )
    return shown


def open_text(log: Log) -> dict[str, str]:
    return {delta.item.id: words_of(delta) for delta in log.open_deltas()}


def words_of(delta: Delta | OutputDelta) -> str:
    return delta.text if isinstance(delta, Delta) else delta.data.decode()


# --- entries ---------------------------------------------------------------------------


def test_positions_count_from_one_over_events_and_records_alike() -> None:
    log = Log()

    first = log.append([turn_started("7"), task_started()], at=1.5)
    second = log.append([turn_ended()], at=2.5)

    assert first == [
        Entry(Seq(1), 1.5, "turn_started", False, b'{"record":"turn_started","event_id":"7","principal":null}'),
        Entry(Seq(2), 1.5, "task_started", True, b'{"type":"task_started"}'),
    ]
    ended = b'{"record":"turn_ended","why":"done","message":null,"principal":null}'
    assert second == [Entry(Seq(3), 2.5, "turn_ended", False, ended)]
    assert log.entries == first + second
    assert log.last == 3


def test_an_empty_log_ends_where_it_starts() -> None:
    assert Log().last == START


def test_appending_nothing_changes_nothing() -> None:
    log = log_of(task_started())

    assert log.append([], at=AT) == []
    assert log.last == 1


def test_clients_are_shown_events_and_never_records() -> None:
    log = log_of(turn_started(), task_started(), user_message("hi"), turn_ended(), agent_message("Hello"))

    assert [entry.seq for entry in log.events()] == [2, 3, 5]
    assert [entry.seq for entry in log.events(after=Seq(2))] == [3, 5]
    assert [entry.seq for entry in log.events(after=Seq(5))] == []
    assert [entry.seq for entry in log.events(hidden=frozenset({"user_message"}))] == [2, 5]


# --- open items ------------------------------------------------------------------------


def test_a_delta_extends_what_is_being_said_and_takes_no_position() -> None:
    log = log_of(task_started())

    first = log.extend(ItemKind.MESSAGE, "Hel")
    second = log.extend(ItemKind.MESSAGE, "lo")

    assert (first.offset, first.text, second.offset, second.text) == (0, "Hel", 3, "lo")
    assert first.item is second.item
    assert log.last == 1
    assert open_text(log) == {"i1": "Hello"}


def test_offsets_count_code_points() -> None:
    log = Log()

    log.extend(ItemKind.MESSAGE, "é\U0001f600")

    assert log.extend(ItemKind.MESSAGE, "!").offset == 2


def test_one_item_of_each_kind_may_be_open() -> None:
    log = Log()
    for kind in ItemKind:
        log.extend(kind, kind.name)
        log.extend(kind, "!")

    assert open_text(log) == {"i1": "MESSAGE!", "i2": "REASONING!", "i3": "RAW_REASONING!"}


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (agent_message("Hello"), {ItemKind.REASONING, ItemKind.RAW_REASONING}),
        (agent_reasoning("Hm."), {ItemKind.MESSAGE, ItemKind.RAW_REASONING}),
        (agent_reasoning_raw_content("hm"), {ItemKind.MESSAGE, ItemKind.REASONING}),
        (background_event("retrying"), set()),
        (error(" Turn interrupted"), set()),
        (task_complete("Hello"), set()),
        (task_started(), set(ItemKind)),
        (user_message("and?"), set(ItemKind)),
        (turn_ended(), set(ItemKind)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_event_ends_its_own_kind_or_voids_everything(event: LogPayload, left: set[ItemKind]) -> None:
    log = Log()
    for kind in ItemKind:
        log.extend(kind, "so far")

    write(log, event)

    assert set(log.open) == left


def test_text_after_an_end_is_another_item() -> None:
    log = Log()
    log.extend(ItemKind.MESSAGE, "Hello")
    write(log, agent_message("Hello"))

    delta = log.extend(ItemKind.MESSAGE, "And")

    assert (delta.item.id, delta.offset) == ("i2", 0)


def test_one_append_may_end_an_item_by_several_events() -> None:
    log = Log()
    log.extend(ItemKind.REASONING, "One. Two.")

    write(log, agent_reasoning("One."), agent_reasoning("Two."))

    assert log.open == {}
    assert log.last == 2


def test_the_tables_of_ends_and_voids_do_not_overlap() -> None:
    assert set(ENDS.values()) == set(ItemKind)
    assert not DISCARDS_OPEN & set(ENDS)


@pytest.mark.parametrize("kind", ItemKind)
@pytest.mark.parametrize("text", ["Hello", "", 'say "hi"\n\\\x00', "é\U0001f600 "])
def test_a_delta_is_encoded_as_the_event_of_its_kind(kind: ItemKind, text: str) -> None:
    delta = Log().extend(kind, text)

    assert json.loads(encode_delta(delta)) == {"type": kind.value, "delta": text}


# --- cursors ---------------------------------------------------------------------------


def test_a_reader_from_the_start_is_handed_entries_first_and_then_the_text_so_far_in_one_piece() -> None:
    log = log_of(turn_started(), task_started())
    log.extend(ItemKind.MESSAGE, "Hel")
    log.extend(ItemKind.MESSAGE, "lo")
    cursor = Cursor()

    assert said(log, cursor) == ["turn_started", "task_started", "i1@0:Hello"]
    assert cursor.live


def test_a_reader_may_start_after_any_position() -> None:
    log = log_of(turn_started(), task_started(), user_message("hi"))

    assert said(log, Cursor(Seq(2))) == ["user_message"]
    assert said(log, Cursor(Seq(3))) == []


def test_a_live_reader_lacks_nothing() -> None:
    log = log_of(task_started())
    log.extend(ItemKind.MESSAGE, "Hel")
    cursor = Cursor.at_end_of(log)

    assert cursor.live
    assert cursor.next(log) is None


def test_a_live_reader_is_handed_what_was_appended_and_not_the_text_it_has() -> None:
    log = log_of(task_started())
    log.extend(ItemKind.REASONING, "Hm")
    log.extend(ItemKind.MESSAGE, "Hello")
    cursor = Cursor.at_end_of(log)

    [entry] = write(log, agent_message("Hello"))
    cursor.appended(log, entry.seq)

    assert said(log, cursor) == ["agent_message"]


def test_a_reader_that_missed_deltas_is_handed_them_merged() -> None:
    log = Log()
    log.extend(ItemKind.MESSAGE, "He")
    cursor = Cursor.at_end_of(log)

    for piece in ("l", "lo"):
        cursor.missed(log, log.extend(ItemKind.MESSAGE, piece))

    assert not cursor.live
    assert said(log, cursor) == ["i1@2:llo"]


def test_missing_one_kind_costs_nothing_of_the_others() -> None:
    log = Log()
    log.extend(ItemKind.REASONING, "Hm")
    cursor = Cursor.at_end_of(log)

    cursor.missed(log, log.extend(ItemKind.MESSAGE, "He"))
    log.extend(ItemKind.REASONING, "...")

    assert said(log, cursor) == ["i1@2:...", "i2@0:He"]


def test_a_reader_that_comes_back_after_the_end_is_handed_the_finished_event_alone() -> None:
    log = Log()
    cursor = Cursor.at_end_of(log)
    cursor.missed(log, log.extend(ItemKind.MESSAGE, "He"))
    log.extend(ItemKind.MESSAGE, "llo")

    [entry] = write(log, agent_message("Hello"))
    cursor.appended(log, entry.seq)

    assert said(log, cursor) == ["agent_message"]


def test_entries_come_before_missed_text() -> None:
    log = Log()
    cursor = Cursor.at_end_of(log)
    cursor.missed(log, log.extend(ItemKind.MESSAGE, "He"))

    [entry] = write(log, user_message("and?"))
    cursor.appended(log, entry.seq)

    assert said(log, cursor) == ["user_message", "i1@0:He"]


def test_a_reader_that_was_stopped_between_two_items_continues_with_the_second() -> None:
    log = Log()
    log.extend(ItemKind.REASONING, "Hm")
    log.extend(ItemKind.MESSAGE, "He")
    cursor = Cursor()

    first = cursor.next(log)
    log.extend(ItemKind.REASONING, "!")

    assert isinstance(first, Delta)
    assert (first.item.id, first.text) == ("i1", "Hm")
    assert said(log, cursor) == ["i1@2:!", "i2@0:He"]


def test_an_empty_delta_gives_a_slow_reader_nothing() -> None:
    log = Log()
    cursor = Cursor.at_end_of(log)
    cursor.missed(log, log.extend(ItemKind.MESSAGE, ""))

    assert said(log, cursor) == []


@pytest.mark.parametrize(
    "event", [background_event("retrying"), error("no"), task_complete()], ids=lambda event: type(event).__name__
)
def test_void_text_is_never_handed_out(event: EventMsg) -> None:
    log = Log()
    log.extend(ItemKind.MESSAGE, "He")
    [entry] = write(log, event)

    assert said(log, Cursor()) == [entry.type]


def test_an_append_that_cannot_be_stored_changes_nothing() -> None:
    log = log_of(task_started())
    log.extend(ItemKind.MESSAGE, "Hel")
    with pytest.raises(UnicodeEncodeError):
        log.append([agent_message("Hello"), error("half a \ud800 pair")], at=AT)

    assert [entry.type for entry in log.entries] == ["task_started"]
    assert [words_of(delta) for delta in log.open_deltas()] == ["Hel"]


# --- durable -----------------------------------------------------------------------------


def test_entries_that_are_not_durable_are_not_shown() -> None:
    log = log_of(task_started())
    log.append([user_message("and?"), agent_message("Hm")], at=AT)
    cursor = Cursor()

    assert said(log, cursor) == ["task_started"]
    assert [entry.seq for entry in log.events()] == [1]
    assert not cursor.live

    log.durable = Seq(2)
    assert said(log, cursor) == ["user_message"]
    assert [entry.seq for entry in log.events(after=Seq(1))] == [2]
    assert not cursor.live


def test_open_texts_wait_for_the_entries_before_them() -> None:
    log = log_of(task_started())
    cursor = Cursor()
    log.extend(ItemKind.MESSAGE, "Hel")
    live = Cursor.at_end_of(log)
    [entry] = log.append([user_message("and?")], at=AT)
    live.appended(log, entry.seq)
    log.extend(ItemKind.MESSAGE, "lo")

    assert (said(log, cursor), said(log, live), log.open_deltas()) == (["task_started"], [], [])

    log.durable = log.last
    assert said(log, cursor) == ["user_message", "i1@0:Hello"]
    assert said(log, live) == ["user_message", "i1@3:lo"]
    assert open_text(log) == {"i1": "Hello"}


def test_a_reader_before_an_entry_that_is_not_durable_is_not_live() -> None:
    log = log_of(task_started())
    log.append([user_message("and?")], at=AT)
    log.extend(ItemKind.MESSAGE, "Hel")
    cursor = Cursor.at_end_of(log)

    assert (cursor.seq, cursor.live) == (1, False)

    log.durable = log.last
    assert said(log, cursor) == ["user_message", "i1@0:Hel"]
    assert cursor.live


def test_a_rollback_removes_entries_and_reopens_the_items_that_they_ended() -> None:
    log = log_of(task_started())
    log.extend(ItemKind.MESSAGE, "Hel")
    live = Cursor.at_end_of(log)
    [ended, *_] = log.append([agent_message("Hel"), task_complete("Hel")], at=AT)
    live.appended(log, ended.seq)
    log.extend(ItemKind.MESSAGE, "never said")

    log.truncate(log.durable)
    more = log.extend(ItemKind.MESSAGE, "lo")

    assert [entry.type for entry in log.entries] == ["task_started"]
    assert (more.item.id, more.offset) == ("i1", 3)
    assert said(log, live) == ["i1@3:lo"]
    assert said(log, Cursor()) == ["task_started", "i1@0:Hello"]


def test_a_rollback_reopens_discarded_items() -> None:
    log = log_of(task_started())
    for kind in ItemKind:
        log.extend(kind, kind.name)
    log.append([background_event("retrying")], at=AT)
    log.truncate(log.durable)

    assert open_text(log) == {"i1": "MESSAGE", "i2": "REASONING", "i3": "RAW_REASONING"}


def test_only_what_comes_after_a_position_is_rolled_back() -> None:
    log = log_of(task_started())
    log.extend(ItemKind.REASONING, "Hm")
    log.extend(ItemKind.MESSAGE, "Hello")
    log.append([agent_reasoning("Hm")], at=AT)
    log.append([agent_message("Hello")], at=AT)

    log.truncate(Seq(2))
    log.durable = log.last

    assert said(log, Cursor()) == ["task_started", "agent_reasoning", "i2@0:Hello"]


def test_entries_of_other_processes_are_added_unchanged() -> None:
    theirs = log_of(turn_started(), task_started(), agent_message("Hello"))
    log = Log()
    log.extend(ItemKind.MESSAGE, "Hel")

    log.append_entries(theirs.entries)

    assert (log.entries, log.open) == (theirs.entries, {})


def test_items_of_two_series_never_have_the_same_name() -> None:
    log = Log()
    names = []
    for series in (1, 2, 12):
        log.begin_series(series)
        for _ in range(3):
            names.append(log.extend(ItemKind.MESSAGE, "Hello").item.id)
            write(log, agent_message("Hello"))

    assert names == ["i1.1", "i1.2", "i1.3", "i2.1", "i2.2", "i2.3", "i12.1", "i12.2", "i12.3"]


# --- the tail --------------------------------------------------------------------------


def test_a_trimmed_log_continues_counting_and_keeps_what_is_not_durable() -> None:
    log = log_of(task_started(), user_message("Hello?"), agent_message("Hello."))
    log.durable = Seq(2)
    log.trim(Seq(3))
    (added,) = log.append([task_complete()], at=AT)

    assert (log.base, log.last, added.seq, log.is_durable) == (2, 4, 4, False)
    assert [entry.seq for entry in log.entries] == [3, 4]
    log.truncate(log.durable)
    assert (log.entries, log.last, log.is_durable) == ([], 2, True)


def test_a_log_that_begins_after_a_position_has_everything_before_it_in_the_store() -> None:
    log = Log(Seq(7))
    log.append([agent_message("Hello.")], at=AT)
    log.durable = log.last

    assert [entry.seq for entry in log.events(after=Seq(7))] == [8]
    with pytest.raises(ValueError, match="entries after 6 are in the store, up to 7"):
        list(log.events(after=Seq(6)))


def test_a_cursor_before_the_tail_is_supplied_in_pages_and_then_reads_the_tail() -> None:
    log = log_of(task_started(), user_message("one"), user_message("two"), agent_message("three"))
    log.durable = log.last
    store = list(log.entries)
    log.trim(Seq(3))
    cursor, passed = Cursor(), []
    while (step := cursor.next(log)) is not None:
        if step is EARLIER:
            cursor.supply(store[cursor.seq : cursor.seq + 2])
        else:
            passed.append(step)

    assert (passed, cursor.live) == (store, True)
