"""Errors that only the runtime raises."""

from __future__ import annotations

from collections.abc import Sequence

from parley.errors import InvalidRequest

__all__ = [
    "MayNotAnswer",
    "MessageIdTaken",
    "NoNodeForDirectory",
    "NotQueued",
    "NothingToCompact",
    "NothingToContinue",
    "QueueFull",
    "RemoteRefusal",
    "TurnIsRunning",
    "UnknownApproval",
]


class MessageIdTaken(InvalidRequest):
    """Raised when a message id already belongs to a message with different content."""

    code = "message_id_taken"

    def __init__(self, message_id: str) -> None:
        super().__init__("Message id was used for another message")
        self.message_id = message_id


class NoNodeForDirectory(InvalidRequest):
    """Raised when no node can run a turn in the working directory or the repository of a conversation. Nothing was
    changed.
    """

    code = "no_node_for_directory"

    def __init__(self, place: str, announced: Sequence[str] = ()) -> None:
        """Create the error.

        `place` is the directory or the repository that no node can use, as a phrase, for example `directory
        /srv/app`. `announced` contains one phrase for each node that has announced the directory or the repository
        but cannot run the turn now, for example `b (not running)`.
        """
        known = ", ".join(announced)
        why = f"announced by: {known}" if known else "no node has announced it"
        remedy = "start a node that has it, or set workspace.roots on the nodes that do"
        super().__init__(f"No node can run a turn in the {place} ({why}); {remedy}")
        self.place, self.announced = place, tuple(announced)


class NotQueued(InvalidRequest):
    """Raised when the queue contains no message with the given id."""

    code = "not_queued"

    def __init__(self, message_id: str) -> None:
        super().__init__(f"Message {message_id} is not queued: its turn has begun, it was removed, or it never was")
        self.message_id = message_id


class QueueFull(InvalidRequest):
    """Raised when the queue has reached its maximum length."""

    code = "queue_full"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The queue is full: {limit} messages wait")
        self.limit = limit


class NothingToContinue(InvalidRequest):
    """Raised when there is no turn to continue, because the last turn completed or there was no turn."""

    code = "nothing_to_continue"

    def __init__(self) -> None:
        super().__init__("Nothing to continue")


class NothingToCompact(InvalidRequest):
    """Raised when the history has no messages that a summary could replace, or when the history consists only of a
    summary.
    """

    code = "nothing_to_compact"

    def __init__(self) -> None:
        super().__init__("Nothing to compact")


class MayNotAnswer(InvalidRequest):
    """Raised when the setting `[approvals] from` does not allow a principal to answer an approval."""

    code = "may_not_answer"

    def __init__(self, allowed: str, *, setting: str) -> None:
        """Create the error.

        `allowed` is a phrase that describes the clients that may answer. `setting` is the value of the setting.
        """
        super().__init__(f'Only {allowed} may answer this approval (approvals.from = "{setting}")')
        self.allowed, self.setting = allowed, setting


class UnknownApproval(InvalidRequest):
    """Raised when no approval has the given id."""

    code = "unknown_approval"

    def __init__(self) -> None:
        super().__init__("Question does not exist")


class RemoteRefusal(InvalidRequest):
    """Raised when the process that owns the conversation responds to a request with an error.

    This exception has the message and the error code of the owner's error.
    """

    code = "refused"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).code


class TurnIsRunning(InvalidRequest):
    """Raised when a turn is unfinished and the operation is possible only between turns."""

    code = "turn_is_running"

    def __init__(self) -> None:
        super().__init__("A turn is running")
