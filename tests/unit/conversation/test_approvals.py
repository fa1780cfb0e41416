"""The open approval of a log, and the settlements of earlier approvals."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kit.builders.approvals import (
    approval_id,
    approval_settlement,
    command_approval,
    limit_approval,
    patch_approval,
)
from kit.builders.events import agent_message, task_started
from kit.builders.records import turn_started
from parley.conversation.approvals import ApprovalEvent, ApprovalState, PendingApproval, may_answer
from parley.conversation.log import LogPayload
from parley.conversation.records import AnswersFrom, ApprovalRequest
from parley.wire.ids import EventId
from parley.wire.principals import LOCAL, PrincipalRef


def approvals_of(*payloads: LogPayload) -> ApprovalState:
    """Return the projection of these entries, with one second between two entries."""
    approvals = ApprovalState()
    for at, one in enumerate(payloads):
        approvals.apply(one, at=float(at))
    return approvals


def test_a_new_conversation_has_no_approvals() -> None:
    approvals = approvals_of(turn_started(), task_started(), agent_message("hello"))

    assert (approvals.open, approvals.settled) == (None, {})


def test_an_approval_is_open_with_all_that_its_event_and_its_turn_say() -> None:
    shown, asked = patch_approval(1, grant_root="/project")
    approvals = approvals_of(turn_started("7"), task_started(), shown, asked)

    assert approvals.open == PendingApproval(request=asked, event=shown, event_id=EventId("7"), at=3.0)
    assert approvals.settled == {}


def test_settlements_are_remembered() -> None:
    approvals = approvals_of(
        turn_started(),
        *command_approval(1, "ls"),
        approval_settlement(1, "denied"),
        *command_approval(2, "ls"),
        approval_settlement(2, "dropped"),
    )

    assert approvals.open is None
    assert {one: settled.decision for one, settled in approvals.settled.items()} == {
        approval_id(1): "denied",
        approval_id(2): "dropped",
    }


ADA, AGAIN = PrincipalRef(name="ada", token_id="1"), PrincipalRef(name="ada", token_id="2")


@pytest.mark.promises("approvals.from", "principals.identity")
@pytest.mark.parametrize(
    ("answers_from", "began_by", "allowed"),
    [
        ("anyone", ADA, [ADA, AGAIN, LOCAL, None]),
        ("local", ADA, [LOCAL]),
        ("designated", ADA, [ADA]),
        ("designated", LOCAL, [LOCAL]),
        ("designated", None, [LOCAL]),
    ],
)
def test_who_may_answer(
    answers_from: AnswersFrom, began_by: PrincipalRef | None, allowed: list[PrincipalRef | None]
) -> None:
    shown, asked = command_approval(1, "ls")
    asked = replace(asked, answers_from=answers_from)
    approvals = approvals_of(turn_started(principal=began_by), shown, asked)

    assert approvals.open is not None
    assert [one for one in (ADA, AGAIN, LOCAL, None) if approvals.open.may_be_answered_by(one)] == allowed


def test_a_principal_with_the_name_of_the_local_user_and_a_token_is_not_local() -> None:
    assert not may_answer("local", PrincipalRef(name="local", token_id="1"), began_by=None)


def test_a_settlement_has_the_facts_for_a_late_answer() -> None:
    settled = replace(approval_settlement(1, "denied"), principal=ADA, reason="no")
    error = approvals_of(turn_started(), *command_approval(1, "ls"), settled).settled[approval_id(1)].error()

    assert str(error) == "Question is settled: denied"
    assert (error.decision, error.principal, error.reason, error.at) == ("denied", "ada", "no", 3.0)


def test_a_repeated_request_for_the_same_call_is_another_approval() -> None:
    shown, asked = command_approval(1, "ls")
    again = replace(asked, approval_id=approval_id(2))
    approvals = approvals_of(turn_started(), shown, asked, approval_settlement(1), shown, again)

    assert approvals.open == PendingApproval(request=again, event=shown, event_id=EventId("1"), at=5.0)


@pytest.mark.parametrize(
    "contradiction",
    [
        (command_approval(1, "ls")[1],),
        (*command_approval(1, "ls"), *command_approval(2, "ls")),
        (*command_approval(1, "ls"), approval_settlement(1), *command_approval(1, "ls")),
        (*command_approval(1, "ls"), approval_settlement(1), command_approval(2, "ls")[1]),
        (approval_settlement(1),),
        (*command_approval(1, "ls"), approval_settlement(2)),
        (*command_approval(1, "ls"), approval_settlement(1), approval_settlement(1)),
    ],
    ids=["not shown", "two open", "asked twice", "shown once", "never asked", "another", "settled twice"],
)
def test_a_log_that_contradicts_itself_is_refused(contradiction: tuple[LogPayload, ...]) -> None:
    with pytest.raises(ValueError, match="the approval 00000000-"):
        approvals_of(turn_started(), *contradiction)


COMMAND, PATCH, LIMIT = command_approval(1, "ls", reason="to look"), patch_approval(1), limit_approval(1)


@pytest.mark.parametrize(
    ("approval", "forged"),
    [
        (COMMAND, {"kind": "limit"}),
        (COMMAND, {"call_id": "call2"}),
        (COMMAND, {"command": ("ls", "-a")}),
        (COMMAND, {"cwd": "/"}),
        (COMMAND, {"reason": None}),
        (COMMAND, {"changes": PATCH[1].changes}),
        (PATCH, {"kind": "exec"}),
        (PATCH, {"changes": {}}),
        (PATCH, {"reason": "to look"}),
        (PATCH, {"command": ("ls",)}),
        (PATCH, {"escalated": True}),
        (LIMIT, {"kind": "exec"}),
        (LIMIT, {"call_id": "call1"}),
        (LIMIT, {"command": ("ls",)}),
        (LIMIT, {"leaves_sandbox": True}),
    ],
)
def test_an_approval_request_must_match_its_event(
    approval: tuple[ApprovalEvent, ApprovalRequest], forged: dict[str, Any]
) -> None:
    shown, asked = approval
    approvals_of(turn_started(), shown, asked)

    with pytest.raises(ValueError, match="is not the one that was shown"):
        approvals_of(turn_started(), shown, replace(asked, **forged))
