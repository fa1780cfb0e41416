"""Branches and summaries of a conversation: the history for the model in each branch."""

from __future__ import annotations

from kit.builders.events import task_complete, task_started, text, user_message
from kit.builders.logs import history_of
from kit.builders.records import (
    call,
    call_output,
    history_compacted,
    input_read,
    input_refused,
    message,
    model_asked,
    model_said,
    turn_ended,
    turn_started,
)
from parley.conversation.history import REFUSED, OutputItem, UserItem
from parley.conversation.log import LogPayload
from parley.wire.ids import CallId
from parley.wire.items import ImageItem, LocalImageItem


def turn(number: int, *, parent: str | None = None, also: tuple[LogPayload, ...] = ()) -> list[LogPayload]:
    """Return a complete turn: the user sends `qN` in message `mN`, and the model answers `aN`."""
    return [
        turn_started(str(number)),
        task_started(),
        user_message(f"q{number}", message_id=f"m{number}", parent=parent),
        *also,
        model_asked(),
        model_said(message(f"a{number}")),
        task_complete(f"a{number}"),
        turn_ended(),
    ]


def seen(*payloads: LogPayload) -> list[str]:
    """Return the texts of the next request."""
    shown: list[str] = []
    for item in history_of(*payloads).items:
        match item:
            case UserItem(content=(part,)):
                shown.append(getattr(part, "text", "") or getattr(part, "image_url", ""))
            case OutputItem(call_id=call_id, output=output):
                shown.append(f"{call_id}: {output}")
            case other:
                shown.append(getattr(other, "text", "") or getattr(other, "call_id", ""))
    return shown


def test_a_branch_begins_after_the_turn_of_its_parent() -> None:
    log = [*turn(1), *turn(2), *turn(3), *turn(4, parent="m1")]

    assert seen(*log) == ["q1", "a1", "q4", "a4"]


def test_the_next_message_continues_with_the_newest_branch() -> None:
    log = [*turn(1), *turn(2), *turn(3, parent="m1"), *turn(4)]

    assert seen(*log) == ["q1", "a1", "q3", "a3", "q4", "a4"]


def test_a_branch_may_go_back_to_one_that_was_left() -> None:
    log = [*turn(1), *turn(2), *turn(3, parent="m1"), *turn(4, parent="m2")]

    assert seen(*log) == ["q1", "a1", "q2", "a2", "q4", "a4"]


def test_the_conversation_itself_as_parent_is_before_everything() -> None:
    log = [*turn(1), *turn(2, parent="the conversation")]

    assert seen(*log) == ["q2", "a2"]


def test_a_message_that_joined_a_turn_stands_for_the_whole_turn() -> None:
    joined = user_message("and", message_id="joined")
    begin = turn(1)
    log = [*begin[:4], joined, model_said(message("a1")), model_asked(), model_said(message("b1")), turn_ended()]

    assert seen(*log, *turn(2), *turn(3, parent="joined")) == ["q1", "a1", "and", "b1", "q3", "a3"]
    assert seen(*log, *turn(2), *turn(3, parent="m1")) == ["q1", "a1", "and", "b1", "q3", "a3"]


def test_a_branch_from_a_turn_that_was_cut_short_has_its_input() -> None:
    cut = [*turn(1)[:3], turn_ended("interrupted")]

    assert seen(*cut, *turn(2), *turn(3, parent="m1")) == ["q1", "q3", "a3"]


# --- summaries ---------------------------------------------------------------------------


def test_a_summary_stands_in_place_of_what_it_sums_up() -> None:
    log = [*turn(1), *turn(2), turn_started("3"), task_started(), user_message("q3", message_id="m3")]

    assert seen(*log, history_compacted("S", replaced=2), model_asked()) == ["S", "q2", "a2", "q3"]


def test_a_summary_in_the_middle_of_a_turn_keeps_calls_with_their_outputs() -> None:
    working: list[LogPayload] = [
        turn_started("2"),
        task_started(),
        user_message("q2", message_id="m2"),
        model_asked(),
        model_said(call("c1")),
        call_output("c1", "one"),
        model_asked(),
        model_said(call("c2")),
        model_said(call("c3")),
        call_output("c2", "two"),
        call_output("c3", "three"),
    ]
    history = history_of(*turn(1), *working)
    assert history.cuts == [0, 2, 2, 5]

    history.apply(history_compacted("S", replaced=5))
    history.apply(model_asked())
    history.apply(model_said(call("c4")))
    history.apply(call_output("c4", "four"))

    assert history.items == [
        UserItem((text("S"),)),
        call("c2"),
        OutputItem(CallId("c2"), "two"),
        call("c3"),
        OutputItem(CallId("c3"), "three"),
        call("c4"),
        OutputItem(CallId("c4"), "four"),
    ]
    assert history.cuts == [1, 5]


def test_a_branch_from_before_a_summary_sees_what_was_said_and_one_from_after_it_the_summary() -> None:
    compacted = turn(3, also=(history_compacted("S", replaced=4),))
    log = [*turn(1), *turn(2), *compacted, *turn(4)]

    assert seen(*log) == ["S", "q3", "a3", "q4", "a4"]
    assert seen(*log, *turn(5, parent="m2")) == ["q1", "a1", "q2", "a2", "q5", "a5"]
    assert seen(*log, *turn(5, parent="m3")) == ["S", "q3", "a3", "q5", "a5"]


def test_a_second_summary_takes_in_the_first() -> None:
    first = turn(3, also=(history_compacted("S", replaced=4),))
    second = turn(4, also=(history_compacted("T", replaced=3),))

    assert seen(*turn(1), *turn(2), *first, *second) == ["T", "q4", "a4"]


# --- files that were read ----------------------------------------------------------------


def test_the_model_is_given_an_image_in_place_of_its_path() -> None:
    said = user_message(LocalImageItem(path="a.png"), message_id="m1")
    read = input_read(ImageItem(image_url="data:image/png;base64,AA"), message_id="m1")

    assert seen(turn_started(), said, read, model_asked()) == ["data:image/png;base64,AA"]


def test_an_image_that_a_tool_looked_at_comes_after_the_outputs() -> None:
    looked: list[LogPayload] = [
        *turn(1)[:4],
        model_said(call("c1")),
        model_said(call("c2")),
        input_read(ImageItem(image_url="data:1")),
        call_output("c1", "attached"),
        call_output("c2", "done"),
        model_asked(),
    ]

    assert seen(*looked) == ["q1", "c1", "c1: attached", "c2", "c2: done", "data:1"]


def test_refused_attachments_are_left_out_and_their_texts_stay() -> None:
    image = ImageItem(image_url="data:1")
    history = history_of(
        *turn(1),
        turn_started("2"),
        user_message("look", image, message_id="m2"),
        model_asked(),
        input_refused(),
        turn_ended("failed", "unexpected status 400"),
    )

    assert history.items == [
        UserItem((text("q1"),)),
        message("a1"),
        UserItem((text("look"), text(REFUSED))),
    ]


def test_attachments_that_the_model_answered_are_not_left_out() -> None:
    image = ImageItem(image_url="data:1")
    history = history_of(
        turn_started("1"),
        user_message(image, message_id="m1"),
        model_asked(),
        model_said(call("c1")),
        call_output("c1", "done"),
        input_read(ImageItem(image_url="data:2")),
        model_asked(),
        input_refused(),
    )

    assert history.items == [
        UserItem((image,)),
        call("c1"),
        OutputItem(CallId("c1"), "done"),
        UserItem((text(REFUSED),)),
    ]


def test_attachments_of_unanswered_turns_are_left_out_too() -> None:
    history = history_of(
        *turn(1),
        turn_started("2"),
        user_message(ImageItem(image_url="data:1"), message_id="m2"),
        model_asked(),
        turn_ended("failed", "stream disconnected"),
        turn_started("3"),
        user_message("and now?", message_id="m3"),
        model_asked(),
        input_refused(),
        turn_ended("failed", "unexpected status 400"),
    )

    assert history.items[2:] == [UserItem((text(REFUSED),)), UserItem((text("and now?"),))]
