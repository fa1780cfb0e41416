"""The usage of turns, and the limits that a person has allowed them to exceed."""

from __future__ import annotations

import pytest

from kit.builders.approvals import approval_settlement, command_approval, limit_approval
from kit.builders.events import token_count
from kit.builders.records import call, call_output, model_said, tokens_estimated, turn_ended, turn_started
from parley.conversation.log import Log, LogPayload
from parley.conversation.projections import Projections
from parley.conversation.usage import UsageTotals
from parley.wire.events import Settlement


def spending_of(*payloads: LogPayload) -> UsageTotals:
    """Return the projection of these entries, with one second between two entries."""
    usage = UsageTotals()
    for at, one in enumerate(payloads):
        usage.apply(one, at=float(at))
    return usage


def test_a_turn_begins_with_nothing_used_and_a_conversation_continues_counting() -> None:
    usage = spending_of(
        turn_started(),
        token_count(input_tokens=10, output_tokens=5),
        model_said(call("c1")),
        call_output("c1", "ok"),
        turn_ended(),
        turn_started("2"),
        tokens_estimated(7),
    )

    assert (usage.turn_tokens, usage.turn_calls, usage.conversation_tokens) == (7, 0, 22)


def test_the_time_in_which_an_answer_was_waited_for_is_not_counted() -> None:
    asked = spending_of(turn_started(), *command_approval(1, "ls"))
    asked.apply(approval_settlement(1), at=1_000.0)

    assert asked.turn_seconds(1_003.0) == 5.0


def test_a_clock_that_was_set_back_makes_no_turn_shorter_than_nothing() -> None:
    usage = spending_of(tokens_estimated(), turn_started(), *limit_approval(1))
    usage.apply(approval_settlement(1), at=0.0)

    assert usage.turn_seconds(0.0) == 0.0


@pytest.mark.parametrize("decision", ["approved", "approved_for_session"])
def test_an_approved_limit_holds_for_the_turn_and_for_conversation_tokens_permanently(
    decision: Settlement,
) -> None:
    agreed = (
        turn_started(),
        tokens_estimated(35),
        call_output("c1", "ok"),
        call_output("c2", "ok"),
        *limit_approval(1, "turn_calls", used=2),
        approval_settlement(1, decision),
        *limit_approval(2, "conversation_tokens", used=35),
        approval_settlement(2, decision),
    )

    assert spending_of(*agreed).agreed == {"turn_calls": 2, "conversation_tokens": 35}
    assert spending_of(*agreed, turn_ended(), turn_started("2")).agreed == {"conversation_tokens": 35}


@pytest.mark.parametrize("decision", ["denied", "abort", "timed_out", "dropped"])
def test_only_an_approval_raises_a_limit(decision: Settlement) -> None:
    assert spending_of(turn_started(), *limit_approval(1), approval_settlement(1, decision)).agreed == {}


def test_an_approved_command_does_not_approve_a_limit() -> None:
    usage = spending_of(
        turn_started(),
        *limit_approval(1),
        approval_settlement(1, "denied"),
        *command_approval(2, "ls"),
        approval_settlement(2, "approved"),
    )

    assert usage.agreed == {}


def test_a_log_cannot_say_that_more_was_agreed_to_than_was_used_nor_that_less_than_nothing_was() -> None:
    usage = spending_of(
        turn_started(),
        tokens_estimated(-1_000),
        tokens_estimated(7),
        *limit_approval(1, "conversation_tokens", used=10**9),
        approval_settlement(1),
    )

    assert (usage.conversation_tokens, usage.agreed) == (7, {"conversation_tokens": 7})


def test_approving_a_command_does_not_raise_a_limit() -> None:
    usage = spending_of(
        turn_started(),
        limit_approval(1)[0],
        *command_approval(2, "ls"),
        approval_settlement(2),
    )

    assert usage.agreed == {}


def test_it_follows_from_what_was_kept_of_a_log() -> None:
    payloads: tuple[LogPayload, ...] = (
        turn_started(),
        token_count(input_tokens=10, output_tokens=5),
        tokens_estimated(20),
        *limit_approval(1, "conversation_tokens", used=35, allowed=10),
        approval_settlement(1, "approved"),
    )
    log, projections = Log(), Projections()
    projections.replay(log.append(payloads, at=1.0))

    assert projections.usage.conversation_tokens == 35
    assert projections.usage.agreed == {"conversation_tokens": 35}
