from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from kit.builders.entries import FIRST
from parley.runtime.commands import AnswerApproval, Command, Interrupt, PeerRequest, Rename, SubmitMessage
from parley.runtime.deadline import Deadline
from parley.runtime.message_intake import Accepted
from parley.runtime.peer_requests import command_for
from parley.runtime.queue_commands import EditMessage, QueueMessage, RemoveMessage, Resume
from parley.wire.ids import ApprovalId, MessageId, Seq
from parley.wire.peers import (
    EditQueued,
    Enqueue,
    InterruptTurn,
    RemoveQueued,
    RenameConversation,
    ResumeQueue,
    SettleApproval,
    Submit,
    Submitted,
)
from parley.wire.principals import LOCAL

MESSAGE: dict[str, Any] = {"conversation_id": FIRST, "message_id": MessageId("m1"), "principal": LOCAL}
KINDS: dict[type[Command], PeerRequest] = {
    SubmitMessage: Submit(content=(), **MESSAGE),
    QueueMessage: Enqueue(content=(), wanted={"model": "m"}, is_limited=True, **MESSAGE),
    EditMessage: EditQueued(content=(), **MESSAGE),
    RemoveMessage: RemoveQueued(**MESSAGE),
    Resume: ResumeQueue(conversation_id=FIRST),
    AnswerApproval: SettleApproval(
        conversation_id=FIRST, approval_id=ApprovalId("a1"), decision="approved", by="client"
    ),
    Interrupt: InterruptTurn(conversation_id=FIRST),
    Rename: RenameConversation(conversation_id=FIRST, title="New"),
}


def test_every_request_is_listed() -> None:
    assert {type(request) for request in KINDS.values()} == set(get_args(PeerRequest))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_request_becomes_the_command_of_another_process(kind: type[Command]) -> None:
    deadline = Deadline(5.0)
    command = command_for(KINDS[kind], deadline, answered=lambda result: None)
    assert (type(command), command.is_from_peer, command.deadline) == (kind, True, deadline)


async def test_a_queued_message_keeps_its_settings_and_its_principal() -> None:
    command = command_for(KINDS[QueueMessage], Deadline(5.0), answered=lambda result: None)
    assert isinstance(command, QueueMessage)
    assert command.message == Submit(content=(), wanted={"model": "m"}, is_limited=True, **MESSAGE)


@pytest.mark.parametrize("kind", [SubmitMessage, QueueMessage])
async def test_a_message_is_answered_with_its_position_when_it_is_accepted(kind: type[Command]) -> None:
    answers: list[bytes] = []
    command = command_for(KINDS[kind], Deadline(5.0), answered=answers.append)
    assert isinstance(command, SubmitMessage)
    command.accepted(Accepted(message_id=MessageId("m1"), turn=None, first=Seq(4), is_queued=True))
    assert [msgspec.json.decode(one, type=Submitted) for one in answers] == [
        Submitted(event_id=None, first=Seq(4), is_queued=True)
    ]
