"""The position of a message in a log, the end of its turn, and the title."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kit.builders.events import agent_message, task_complete, user_message
from kit.builders.records import renamed, settings_chosen, turn_ended, turn_started
from parley.conversation.errors import UnknownMessage
from parley.conversation.log import Entry, Log
from parley.conversation.log_queries import entries_up_to, last_text, position_of
from parley.errors import TurnIsRunning
from parley.wire.ids import MessageId, Seq

A, B = MessageId("a"), MessageId("b")


def two_turns(*, ended: bool = True) -> Log:
    """The message `b` stands in 6; what stands in 3 only speaks of it."""
    log = Log()
    first = (turn_started("1"), user_message("b", '"message_id":"b"', message_id="a"), turn_ended())
    second = (turn_started("2"), user_message("go", message_id="b", parent="a"), agent_message('"b"'))
    log.append((settings_chosen(), *first, *second, *((turn_ended(),) if ended else ())), at=1.0)
    return log


def test_the_position_of_a_message_is_its_own_event_and_not_a_reference() -> None:
    entries = two_turns().entries

    assert (position_of(entries, A), position_of(entries, B)) == (3, 6)
    assert position_of(entries[3:], B) == 6
    with pytest.raises(UnknownMessage):
        position_of(entries[3:], A)  # it is the parent of one that is there


def test_a_message_is_found_however_its_json_is_written() -> None:
    body = b'{ "content": [], "message_id" : "\\u0061", "type": "user_message" }'

    assert position_of([Entry.stored(Seq(1), 1.0, "user_message", is_event=True, body=body)], A) == 1


def test_a_turn_is_all_up_to_its_end_and_the_last_one_where_none_is_named() -> None:
    entries = two_turns().entries

    assert entries_up_to(entries, A) == entries[:4]
    assert entries_up_to(entries, B) == entries_up_to(entries, None) == entries
    assert entries_up_to(entries[:1], None) == entries[:1]
    with pytest.raises(UnknownMessage):
        entries_up_to(entries, MessageId("c"))


def test_a_fork_has_only_the_latest_title_that_was_set_after_its_turn() -> None:
    log = two_turns()
    log.append((renamed("Foxes"), renamed("Hares")), at=2.0)
    title = log.entries[-1]

    assert entries_up_to(log.entries, None) == log.entries
    assert entries_up_to(log.entries, B) == [*log.entries[:8], replace(title, seq=Seq(9))]
    assert entries_up_to(log.entries, A) == [*log.entries[:4], replace(title, seq=Seq(5))]


def test_a_turn_that_has_not_ended_has_no_end() -> None:
    entries = two_turns(ended=False).entries

    assert entries_up_to(entries, A) == entries[:4]
    for named in (B, None):
        with pytest.raises(TurnIsRunning):
            entries_up_to(entries, named)


def test_what_came_of_a_turn_is_found_also_when_another_has_ended_since() -> None:
    log = Log()
    first = turn_started("1"), task_complete("One"), turn_ended()
    second = turn_started("2"), agent_message("Two"), task_complete("Two"), turn_ended()
    log.append((settings_chosen(), *first, *second, turn_started("3"), agent_message("Three")), at=1.0)

    assert [last_text(log.entries, until_position=Seq(place)) for place in (2, 4, 7, 8, log.last)] == [
        None,
        "One",
        "Two",
        "Two",
        "Two",
    ]
