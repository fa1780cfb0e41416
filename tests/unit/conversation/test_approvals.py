"""The open approval of a log, and how the earlier ones were settled."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kit.builders.events import agent_message, task_started
from kit.builders.questions import approval_id, command_question, limit_question, patch_question, question_settled
from kit.builders.records import turn_started
from parley.conversation.approvals import ApprovalEvent, ApprovalState, PendingApproval
from parley.conversation.log import LogPayload
from parley.conversation.records import QuestionAsked
from parley.wire.ids import EventId


def approvals_of(*payloads: LogPayload) -> ApprovalState:
    """Return the projection of these entries, each a second after the one before."""
    approvals = ApprovalState()
    for at, one in enumerate(payloads):
        approvals.apply(one, at=float(at))
    return approvals


def test_at_first_nothing_is_asked() -> None:
    approvals = approvals_of(turn_started(), task_started(), agent_message("hello"))

    assert (approvals.open, approvals.settled) == (None, {})


def test_a_question_is_open_with_all_that_its_event_and_its_turn_say() -> None:
    shown, asked = patch_question(1, grant_root="/project")
    approvals = approvals_of(turn_started("7"), task_started(), shown, asked)

    assert approvals.open == PendingApproval(request=asked, event=shown, event_id=EventId("7"), at=3.0)
    assert approvals.settled == {}


def test_settlements_are_remembered() -> None:
    approvals = approvals_of(
        turn_started(),
        *command_question(1, "ls"),
        question_settled(1, "denied"),
        *command_question(2, "ls"),
        question_settled(2, "dropped"),
    )

    assert approvals.open is None
    assert approvals.settled == {approval_id(1): "denied", approval_id(2): "dropped"}


def test_the_same_call_asked_again_is_another_question() -> None:
    shown, asked = command_question(1, "ls")
    again = replace(asked, approval_id=approval_id(2))
    approvals = approvals_of(turn_started(), shown, asked, question_settled(1), shown, again)

    assert approvals.open == PendingApproval(request=again, event=shown, event_id=EventId("1"), at=5.0)


@pytest.mark.parametrize(
    "contradiction",
    [
        (command_question(1, "ls")[1],),
        (*command_question(1, "ls"), *command_question(2, "ls")),
        (*command_question(1, "ls"), question_settled(1), *command_question(1, "ls")),
        (*command_question(1, "ls"), question_settled(1), command_question(2, "ls")[1]),
        (question_settled(1),),
        (*command_question(1, "ls"), question_settled(2)),
        (*command_question(1, "ls"), question_settled(1), question_settled(1)),
    ],
    ids=["not shown", "two open", "asked twice", "shown once", "never asked", "another", "settled twice"],
)
def test_a_log_that_contradicts_itself_is_refused(contradiction: tuple[LogPayload, ...]) -> None:
    with pytest.raises(ValueError, match="the question 00000000-"):
        approvals_of(turn_started(), *contradiction)


COMMAND, PATCH, LIMIT = command_question(1, "ls", reason="to look"), patch_question(1), limit_question(1)


@pytest.mark.parametrize(
    ("question", "forged"),
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
    question: tuple[ApprovalEvent, QuestionAsked], forged: dict[str, Any]
) -> None:
    shown, asked = question
    approvals_of(turn_started(), shown, asked)

    with pytest.raises(ValueError, match="is not the one that was shown"):
        approvals_of(turn_started(), shown, replace(asked, **forged))
