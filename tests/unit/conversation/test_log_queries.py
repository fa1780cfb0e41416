"""Queries about the entries of a log: the end of a turn, its last text, and the title."""

from __future__ import annotations

from kit.builders.events import agent_message, error, task_complete
from kit.builders.records import renamed, session_granted, settings_chosen, turn_ended, turn_started
from parley.conversation.log import Log
from parley.conversation.log_queries import for_copy, is_title, is_turn_end, last_text, turn_end_in


def three_turns() -> Log:
    log = Log()
    first = turn_started("1"), task_complete("One"), turn_ended()
    second = turn_started("2"), agent_message("Two"), task_complete("Two"), turn_ended()
    third = turn_started("3"), agent_message("Three"), error("so"), turn_ended("failed", "so")
    log.append((settings_chosen(), *first, *second, *third, renamed("Foxes")), at=1.0)
    return log


def test_the_last_text_is_that_of_the_last_complete_turn() -> None:
    entries = three_turns().entries

    assert [last_text(entries[:place]) for place in (2, 4, 7, 8, 11)] == [None, "One", "Two", "Two", "Two"]


def test_the_end_of_the_last_turn_has_its_text_or_the_reason() -> None:
    entries = three_turns().entries

    found = [turn_end_in(entries[:place]) for place in (3, 4, 8, 13)]
    assert [None if end is None else (end.ended.why, end.text) for end in found] == [
        None,
        ("done", "One"),
        ("done", "Two"),
        ("failed", "so"),
    ]


def test_ends_of_turns_and_titles_are_recognised() -> None:
    entries = three_turns().entries

    assert [entry.seq for entry in entries if is_turn_end(entry)] == [4, 8, 12]
    assert [entry.seq for entry in entries if is_title(entry)] == [13]


def test_a_copy_has_no_grants() -> None:
    log = Log()
    log.append((session_granted(), renamed("Foxes")), at=1.0)

    assert [for_copy(entry) == entry for entry in log.entries] == [False, True]
    assert b'"key":""' in for_copy(log.entries[0]).encoded
