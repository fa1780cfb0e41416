"""Positions, open items, and what a reader at some place in the log is handed next."""

from __future__ import annotations

import json

import pytest

from kit.events import (
    agent_message,
    agent_reasoning,
    agent_reasoning_raw_content,
    background_event,
    error,
    task_complete,
    task_started,
    user_message,
)
from kit.logs import AT, log_of
from kit.records import turn_ended, turn_started
from parley.conversation.log import ENDS, VOIDS, Cursor, Delta, Entry, Happened, ItemKind, Log, encode_delta
from parley.conversation.output import OutputDelta
from parley.wire.events import EventMsg
from parley.wire.ids import START, Seq


def said(log: Log, cursor: Cursor) -> list[str]:
    """All that the reader lacks: an entry by its type, a delta as `item@offset:text`."""
    told: list[str] = []
    while (thing := cursor.next(log)) is not None:
        told.append(thing.type if isinstance(thing, Entry) else f"{thing.item.id}@{thing.offset}:{words_of(thing)}")
    return told


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
        Entry(Seq(1), 1.5, "turn_started", False, b'{"record":"turn_started","event_id":"7"}'),
        Entry(Seq(2), 1.5, "task_started", True, b'{"type":"task_started"}'),
    ]
    assert second == [
        Entry(Seq(3), 2.5, "turn_ended", False, b'{"record":"turn_ended","why":"done","message":null}')
    ]
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
def test_an_event_ends_its_own_kind_or_voids_everything(event: Happened, left: set[ItemKind]) -> None:
    log = Log()
    for kind in ItemKind:
        log.extend(kind, "so far")

    log.append([event], at=AT)

    assert set(log.open) == left


def test_what_is_said_after_an_end_is_another_item() -> None:
    log = Log()
    log.extend(ItemKind.MESSAGE, "Hello")
    log.append([agent_message("Hello")], at=AT)

    delta = log.extend(ItemKind.MESSAGE, "And")

    assert (delta.item.id, delta.offset) == ("i2", 0)


def test_one_append_may_end_an_item_by_several_events() -> None:
    log = Log()
    log.extend(ItemKind.REASONING, "One. Two.")

    log.append([agent_reasoning("One."), agent_reasoning("Two.")], at=AT)

    assert log.open == {}
    assert log.last == 2


def test_the_tables_of_ends_and_voids_do_not_overlap() -> None:
    assert set(ENDS.values()) == set(ItemKind)
    assert not VOIDS & set(ENDS)


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


def test_a_reader_may_start_behind_any_position() -> None:
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

    [entry] = log.append([agent_message("Hello")], at=AT)
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

    [entry] = log.append([agent_message("Hello")], at=AT)
    cursor.appended(log, entry.seq)

    assert said(log, cursor) == ["agent_message"]


def test_what_was_appended_comes_before_the_text_that_was_missed_earlier() -> None:
    log = Log()
    cursor = Cursor.at_end_of(log)
    cursor.missed(log, log.extend(ItemKind.MESSAGE, "He"))

    [entry] = log.append([user_message("and?")], at=AT)
    cursor.appended(log, entry.seq)

    assert said(log, cursor) == ["user_message", "i1@0:He"]


def test_a_reader_that_was_stopped_between_two_items_goes_on_with_the_second() -> None:
    log = Log()
    log.extend(ItemKind.REASONING, "Hm")
    log.extend(ItemKind.MESSAGE, "He")
    cursor = Cursor()

    first = cursor.next(log)
    log.extend(ItemKind.REASONING, "!")

    assert isinstance(first, Delta)
    assert (first.item.id, first.text) == ("i1", "Hm")
    assert said(log, cursor) == ["i1@2:!", "i2@0:He"]


def test_an_empty_delta_leaves_a_reader_that_is_behind_with_nothing_to_be_told() -> None:
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
    [entry] = log.append([event], at=AT)

    assert said(log, Cursor()) == [entry.type]


def test_an_append_that_cannot_be_written_down_changes_nothing() -> None:
    log = log_of(task_started())
    log.extend(ItemKind.MESSAGE, "Hel")
    with pytest.raises(UnicodeEncodeError):
        log.append([agent_message("Hello"), error("half a \ud800 pair")], at=AT)

    assert [entry.type for entry in log.entries] == ["task_started"]
    assert [words_of(delta) for delta in log.open_deltas()] == ["Hel"]
