"""The table of phases, and the other parts of the state."""

from __future__ import annotations

from itertools import product

import pytest

from kit.builders.approvals import approval_settlement, command_approval
from kit.builders.events import (
    agent_message,
    error,
    task_complete,
    task_started,
    token_count,
    user_message,
)
from kit.builders.logs import AT, state_of
from kit.builders.records import (
    call,
    call_output,
    command_output,
    history_compacted,
    input_read,
    input_refused,
    message_joined,
    message_queued,
    model_asked,
    model_said,
    queued_message_edited,
    queued_message_removed,
    renamed,
    response_used,
    session_granted,
    settings_chosen,
    tokens_estimated,
    turn_ended,
    turn_started,
)
from parley.conversation.log import LogPayload
from parley.conversation.records import RECORD_TYPES, QueuePaused, QueueResumed, Record, TurnEnded, TurnStarted
from parley.conversation.state import NEXT, Phase, State, TurnOutcome
from parley.wire.events import TurnEndReason
from parley.wire.ids import EventId, Seq
from parley.wire.items import ImageItem, InputItem
from parley.wire.tools import Tokens

RECORDS: dict[type[Record], Record] = {
    type(record): record
    for record in (
        settings_chosen(),
        renamed("A title"),
        turn_started("9"),
        message_joined("m1"),
        model_asked(),
        model_said(call("c1")),
        response_used(token_count(input_tokens=3, output_tokens=2, cached=1)),
        tokens_estimated(),
        call_output("c1", "ok"),
        command_output("c1", b"ok"),
        command_approval(1, "ls")[1],
        approval_settlement(1),
        session_granted(),
        input_read(),
        input_refused(),
        history_compacted(),
        message_queued("m1"),
        queued_message_edited("m1"),
        queued_message_removed("m1"),
        QueuePaused(),
        QueueResumed(),
        turn_ended(),
    )
}
MOVES = tuple(dict.fromkeys(record for _, record in NEXT))


def at_phase(phase: Phase) -> State:
    """Return a conversation in this phase, reached by `NEXT`."""
    ways: dict[Phase, list[Record]] = {Phase.IDLE: []}
    while phase not in ways:
        found = {to: [*ways[by], RECORDS[how]] for (by, how), to in NEXT.items() if by in ways and to not in ways}
        assert found, f"no way leads to {phase}"
        ways |= found
    state = state_of(*ways[phase])
    assert state.phase is phase
    return state


REACHABLE = tuple(dict.fromkeys((*NEXT.values(), *(phase for phase, _ in NEXT))))


def test_every_record_is_tried_here() -> None:
    assert set(RECORDS) == set(RECORD_TYPES.values())


@pytest.mark.parametrize(("phase", "record"), NEXT, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_legal_move_leads_where_the_table_says(phase: Phase, record: type[Record]) -> None:
    state = at_phase(phase)

    state.apply(RECORDS[record], at=5.0)

    assert state.phase is NEXT[phase, record]


@pytest.mark.parametrize(
    ("phase", "record"),
    [move for move in product(REACHABLE, MOVES) if move not in NEXT],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_move_that_the_table_does_not_name_is_refused_and_leaves_the_phase(
    phase: Phase, record: type[Record]
) -> None:
    state = at_phase(phase)

    with pytest.raises(ValueError, match=f"{record.__name__} while {phase.value}"):
        state.apply(RECORDS[record], at=5.0)
    assert state.phase is phase


@pytest.mark.parametrize(
    ("phase", "record"),
    [(phase, record) for phase, record in product(REACHABLE, RECORDS) if record not in MOVES],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_all_other_records_leave_the_phase_as_it_is(phase: Phase, record: type[Record]) -> None:
    state = at_phase(phase)

    state.apply(RECORDS[record], at=5.0)

    assert state.phase is phase


@pytest.mark.parametrize("event", [task_started(), agent_message("Hi"), error("no"), task_complete("Hi")])
def test_no_event_starts_or_ends_a_turn(event: LogPayload) -> None:
    assert state_of(event).phase is Phase.IDLE
    assert state_of(turn_started(), event).phase is Phase.RUNNING


@pytest.mark.parametrize("why", ["done", "failed", "interrupted", "restarted", "stopped"])
def test_a_turn_may_end_for_any_reason_and_the_next_may_start(why: TurnEndReason) -> None:
    state = state_of(turn_started("1"), turn_ended(why, "Hello"), turn_started("2"))

    assert state.phase is Phase.RUNNING
    assert state.event_id == "2"


def test_the_outcome_of_a_turn_is_its_last_message_or_its_error() -> None:
    done = (turn_started("1"), agent_message("Half"), task_complete("x" * 400), turn_ended())
    failed = (turn_started("2"), error("no"), task_complete(), turn_ended("failed", "no", "bad_setting"))
    cut = (turn_started("3"), error("off"), turn_ended("interrupted", "off"))

    assert state_of().outcome is None
    assert state_of(*done[:-1]).outcome is None
    outcomes = [state_of(*turns).outcome for turns in (done, (*done, *failed), (*done, *failed, *cut))]
    assert outcomes == [
        TurnOutcome(seq=Seq(3), at=AT, reason="done", text="x" * 300),
        TurnOutcome(seq=Seq(7), at=AT, reason="failed", text="no", code="bad_setting"),
        TurnOutcome(seq=Seq(10), at=AT, reason="interrupted", text="off"),
    ]
    assert [one.has_failed for one in outcomes if one] == [False, True, False]
    assert state_of(*done, *failed[:2]).outcome == outcomes[0]
    assert state_of(*done, turn_started("2"), turn_ended()).outcome == TurnOutcome(seq=Seq(5), at=AT, reason="done")


def test_a_conversation_begins_idle_and_empty() -> None:
    state = State()

    assert (state.phase, state.model, state.cwd, state.title, state.tokens) == (Phase.IDLE, "", "", "", None)
    assert (state.event_id, state.messages, state.updated_at) == (None, {}, 0.0)


def test_the_settings_chosen_last_are_in_force() -> None:
    state = state_of(settings_chosen("gpt-5", "/a"), settings_chosen("o3", "/b"))

    assert (state.model, state.cwd) == ("o3", "/b")


def test_activity_is_when_the_last_entry_was_made() -> None:
    state = State()
    state.apply(turn_started(), at=1.0)
    state.apply(task_started(), at=2.5)

    assert state.updated_at == 2.5


def test_a_turn_is_known_with_the_moment_it_began() -> None:
    state = State()
    state.apply(turn_started("7"), at=1.0)
    state.apply(task_started(), at=2.5)

    assert (state.event_id, state.since) == ("7", 1.0)


def test_messages_are_known_by_their_ids() -> None:
    state = state_of(user_message("one", message_id="a"), user_message("two", message_id="b"))

    assert state.messages == {"a": 1, "b": 2}
    assert (state.forget(Seq(1)), state.messages) == (["a"], {"b": 2})


# --- title -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "title"),
    [
        (("Hunt the fox",), "Hunt the fox"),
        (("Hunt the fox\nand the hare",), "Hunt the fox"),
        (("\n \n  Hunt the fox  \r\nand the hare",), "Hunt the fox"),
        (("Hunt ", ImageItem(file_id="f"), "the fox"), "Hunt the fox"),
        (("x" * 80,), "x" * 80),
        (("x" * 81,), "x" * 80),
        (("\U0001f98a" * 81,), "\U0001f98a" * 80),
        (("\x1b[2JHunt\r\x00\x7f\x9b\u2028the fox\a\nat once",), "[2JHunt     the fox"),
        ((" \n\t",), ""),
        ((ImageItem(file_id="f"),), ""),
        ((), ""),
    ],
    ids=repr,
)
def test_the_title_is_the_first_line_of_what_was_said_cut_at_80_characters(
    content: tuple[str | InputItem, ...], title: str
) -> None:
    assert state_of(user_message(*content)).title == title


def test_later_messages_leave_the_title() -> None:
    assert state_of(user_message("one"), user_message("two", message_id="m2")).title == "one"


def test_a_first_message_without_words_leaves_the_title_to_the_next() -> None:
    assert state_of(user_message(ImageItem(file_id="f")), user_message("two", message_id="m2")).title == "two"


def test_a_title_stays_until_the_next_is_set() -> None:
    given = (renamed("Foxes"), user_message("one"))

    assert state_of(*given).title == "Foxes"
    assert state_of(user_message("one"), *given, renamed("Hares")).title == "Hares"


def test_a_title_has_one_line_and_no_control_characters() -> None:
    assert state_of(renamed("Foxes\nand\x1b[31m hares\0\n")).title == "Foxes and [31m hares"


# --- the turn ----------------------------------------------------------------------------


def test_the_input_of_a_turn_is_known_until_the_next_begins() -> None:
    said = (user_message("one", message_id="a"), user_message("two", message_id="b"))

    assert state_of(turn_started("1"), *said, turn_ended()).inputs == {"a": 2, "b": 3}
    assert state_of(turn_started("1"), *said, turn_ended(), turn_started("2")).inputs == {}


# --- event ids ---------------------------------------------------------------------------


def test_event_ids_count_from_one_because_zero_is_taken() -> None:
    state = State()

    assert [state.next_event_id() for _ in range(3)] == ["1", "2", "3"]


def test_a_wanted_event_id_is_given_unless_it_was_used() -> None:
    state = state_of(turn_started("7"), turn_ended())

    assert state.next_event_id(EventId("call-a")) == "call-a"
    assert state.next_event_id(EventId("7")) == "1"
    assert state.next_event_id(EventId("0")) == "2"


def test_the_counter_skips_ids_that_calls_have_used() -> None:
    state = state_of(turn_started("1"), turn_ended(), turn_started("2"), turn_ended(), turn_started("4"))

    assert [state.next_event_id() for _ in range(2)] == ["3", "5"]


def test_a_conversation_that_was_loaded_again_reuses_no_event_id() -> None:
    before = State()
    log: list[LogPayload] = []
    for _ in range(3):
        log += [turn_started(before.next_event_id()), turn_ended()]

    assert state_of(*log).next_event_id() == "4"


# --- tokens ----------------------------------------------------------------------------


def test_tokens_add_up_over_responses_and_an_unknown_part_counts_as_none() -> None:
    state = state_of(
        token_count(input_tokens=10, cached=2, output_tokens=5, reasoning=1),
        token_count(input_tokens=20, output_tokens=7),
        token_count(input_tokens=1, cached=1, output_tokens=0, reasoning=3),
    )

    assert state.tokens == Tokens(
        input_tokens=31, cached_input_tokens=3, output_tokens=12, reasoning_output_tokens=4, total_tokens=43
    )


def test_the_table_knows_how_a_turn_starts_and_ends() -> None:
    assert NEXT[Phase.IDLE, TurnStarted] is Phase.RUNNING
    assert NEXT[Phase.RUNNING, TurnEnded] is Phase.IDLE


def test_a_turn_continues_when_its_approval_is_settled_and_cannot_end_before() -> None:
    asks = (turn_started(), *command_approval(1, "ls"))

    assert state_of(*asks).phase is Phase.ASKING
    assert state_of(*asks, approval_settlement(1, "dropped")).phase is Phase.RUNNING
    with pytest.raises(ValueError, match="TurnEnded while asking"):
        state_of(*asks, turn_ended())
