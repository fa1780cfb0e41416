"""Converts requests from other processes to commands.

The owner of a conversation executes these commands in the same way as the commands of its own clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from parley.runtime.commands import (
    AnswerApproval,
    Command,
    Compact,
    Continue,
    Interrupt,
    PeerRequest,
    PlacedRequest,
    Rename,
    SubmitMessage,
)
from parley.runtime.deadline import Deadline
from parley.runtime.message_intake import Accepted
from parley.runtime.queue_commands import EditMessage, QueueMessage, RemoveMessage, Resume
from parley.wire.jsonrpc import encode
from parley.wire.peers import (
    CompactHistory,
    ContinueTurn,
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

__all__ = ["command_for", "placed_command"]


def command_for(request: PeerRequest, deadline: Deadline, *, answered: Callable[[bytes], None]) -> Command:
    """Return the command for a request from another process.

    A command that accepts a message calls `answered` with the encoded result. For all other commands, the caller
    sends the response when the command is done.
    """

    def accepted(message: Accepted) -> None:
        event_id = None if message.turn is None else message.turn.event_id
        answered(encode(Submitted(event_id=event_id, first=message.first, is_queued=message.is_queued)))

    match request:
        case Submit():
            return SubmitMessage(request, deadline, accepted=accepted, is_from_peer=True)
        case Enqueue():
            message = Submit(
                conversation_id=request.conversation_id,
                content=request.content,
                message_id=request.message_id,
                wanted=request.wanted,
                principal=request.principal,
                is_limited=request.is_limited,
            )
            return QueueMessage(message, deadline, accepted=accepted, is_from_peer=True)
        case EditQueued():
            return EditMessage(request, deadline, is_from_peer=True)
        case RemoveQueued():
            return RemoveMessage(request, deadline, is_from_peer=True)
        case ResumeQueue():
            return Resume(request, deadline, is_from_peer=True)
        case SettleApproval():
            return AnswerApproval(request, deadline, is_from_peer=True)
        case InterruptTurn():
            return Interrupt(request, deadline, is_from_peer=True)
        case RenameConversation():
            return Rename(request, deadline, is_from_peer=True)
        case _:
            assert_never(request)


def placed_command(request: PlacedRequest, deadline: Deadline, *, answered: Callable[[bytes], None]) -> Command:
    """Return the command for a request that another node has sent to this node for execution (`Place`).

    This process executes the command as if a client of this process had sent the request. `answered` has the same
    meaning as for `command_for`.
    """
    if isinstance(request, ContinueTurn | CompactHistory):
        kind = Continue if isinstance(request, ContinueTurn) else Compact
        command: Command = kind(request.principal, deadline, began=lambda _: None, resolve=None)
    else:
        command = command_for(request, deadline, answered=answered)
        command.is_from_peer = False
    command.is_placed = True
    return command
