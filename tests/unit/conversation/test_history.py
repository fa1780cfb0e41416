"""The history that the model gets, which is the log as messages."""

from __future__ import annotations

import pytest

from kit.builders.events import agent_message, error, task_complete, task_started, text, token_count, user_message
from kit.builders.logs import history_of
from kit.builders.records import (
    call,
    call_output,
    message,
    model_asked,
    model_said,
    opaque,
    settings_chosen,
    turn_ended,
    turn_started,
)
from parley.conversation.history import ABORTED, HistoryItem, OutputItem, UserItem
from parley.conversation.log import LogPayload
from parley.wire.events import TurnEndReason
from parley.wire.ids import CallId

BEGIN: list[LogPayload] = [turn_started(), task_started()]


def asked(words: str) -> UserItem:
    return UserItem((text(words),))


def output(call_id: str, result: str) -> OutputItem:
    return OutputItem(CallId(call_id), result)


def items_of(*payloads: LogPayload) -> list[HistoryItem]:
    return history_of(*payloads).items


def test_input_comes_first_and_then_what_the_model_said() -> None:
    assert items_of(
        settings_chosen(),
        *BEGIN,
        user_message("greet me"),
        model_asked(),
        model_said(opaque()),
        agent_message("Hello"),
        model_said(message("Hello")),
        token_count(input_tokens=1, output_tokens=1),
        task_complete("Hello"),
        turn_ended(),
    ) == [asked("greet me"), opaque(), message("Hello")]


def test_input_waits_until_the_model_is_asked() -> None:
    history = history_of(*BEGIN, user_message("greet me"))

    assert (history.items, history.waiting) == ([], [asked("greet me")])

    history.apply(model_asked())

    assert (history.items, history.waiting) == ([asked("greet me")], [])


def test_each_call_is_directly_followed_by_its_output() -> None:
    assert items_of(
        *BEGIN,
        user_message("go"),
        model_asked(),
        model_said(message("First two calls.")),
        model_said(call("a")),
        model_said(call("b")),
        model_said(message("Then a word.")),
        call_output("a", "1"),
        call_output("b", "2"),
        model_asked(),
        model_said(message("Done")),
    ) == [
        asked("go"),
        message("First two calls."),
        call("a"),
        output("a", "1"),
        call("b"),
        output("b", "2"),
        message("Then a word."),
        message("Done"),
    ]


def test_input_that_joined_comes_once_after_the_outputs_of_the_response_it_waited_for() -> None:
    assert items_of(
        *BEGIN,
        user_message("go"),
        model_asked(),
        user_message("faster", message_id="m2"),
        model_said(call("a")),
        user_message("please", message_id="m3"),
        call_output("a", "1"),
        model_asked(),
        model_said(message("Done")),
        turn_ended(),
    ) == [asked("go"), call("a"), output("a", "1"), asked("faster"), asked("please"), message("Done")]


def test_a_request_that_is_repeated_sends_the_same_input() -> None:
    assert items_of(*BEGIN, user_message("go"), model_asked(), model_asked(), model_asked()) == [asked("go")]


def test_calls_that_share_an_id_get_their_outputs_in_order() -> None:
    assert items_of(
        model_said(call("a", '{"n":1}')),
        model_said(call("b")),
        model_said(call("a", '{"n":2}')),
        model_said(call("a", '{"n":3}')),
        call_output("a", "one"),
        call_output("b", "between"),
        call_output("a", "two"),
        call_output("a", "three"),
    ) == [
        call("a", '{"n":1}'),
        output("a", "one"),
        call("b"),
        output("b", "between"),
        call("a", '{"n":2}'),
        output("a", "two"),
        call("a", '{"n":3}'),
        output("a", "three"),
    ]


def test_a_later_response_may_repeat_an_id_of_an_earlier_one() -> None:
    assert items_of(
        model_said(call("a", '{"n":1}')),
        call_output("a", "one"),
        model_asked(),
        model_said(call("a", '{"n":2}')),
        call_output("a", "two"),
    ) == [call("a", '{"n":1}'), output("a", "one"), call("a", '{"n":2}'), output("a", "two")]


def test_calls_without_an_output_are_known_in_order() -> None:
    history = history_of(model_said(call("a")), model_said(call("b")), model_said(call("a")))

    assert list(history.unanswered) == ["a", "b", "a"]

    history.apply(call_output("a", "1"))

    assert list(history.unanswered) == ["b", "a"]


@pytest.mark.parametrize(
    "said", [[], [model_said(call("a")), call_output("a", "1")]], ids=["never made", "answered"]
)
def test_an_output_without_an_open_call_is_refused(said: list[LogPayload]) -> None:
    history = history_of(*said)
    before = list(history.items)

    with pytest.raises(ValueError, match="'a'"):
        history.apply(call_output("a", "again"))
    assert history.items == before


def test_an_interrupt_leaves_every_call_with_one_output_and_takes_back_no_input() -> None:
    history = history_of(
        *BEGIN,
        user_message("go"),
        model_asked(),
        model_said(call("a")),
        model_said(call("b")),
        call_output("a", "1"),
        user_message("stop that", message_id="m2"),
        call_output("b", ABORTED),
        error(" Turn interrupted"),
        turn_ended("interrupted"),
    )

    assert history.items == [
        asked("go"),
        call("a"),
        output("a", "1"),
        call("b"),
        output("b", "aborted"),
        asked("stop that"),
    ]
    assert (history.waiting, history.unanswered) == ([], ())


@pytest.mark.parametrize("why", ["failed", "interrupted", "restarted", "stopped"])
def test_a_turn_that_ended_before_the_model_was_asked_keeps_its_input(why: TurnEndReason) -> None:
    assert items_of(
        *BEGIN,
        user_message("go"),
        error("no"),
        turn_ended(why),
        *BEGIN,
        user_message("again", message_id="m2"),
        model_asked(),
    ) == [asked("go"), asked("again")]
