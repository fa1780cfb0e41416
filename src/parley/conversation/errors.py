"""Errors that only the package `conversation` raises."""

from __future__ import annotations

from parley.errors import InvalidRequest

__all__ = ["EarlierEntriesNeeded", "ParentUnknown", "UnknownMessage"]


class EarlierEntriesNeeded(ValueError):
    """Raised when an entry refers to an earlier message that the projections lack. They lack it if they were
    restored from a checkpoint or have removed the message from memory.

    The caller must then create new projections and apply the log from its first entry.
    """

    def __init__(self, message_id: str) -> None:
        super().__init__(f"message {message_id} is before the checkpoint")
        self.message_id = message_id


class ParentUnknown(InvalidRequest):
    """Raised when a client gives a parent id that no message of the conversation has."""

    code = "unknown_parent"

    def __init__(self, message_id: str) -> None:
        super().__init__("Parent message does not exist")
        self.message_id = message_id


class UnknownMessage(InvalidRequest):
    """Raised when a client gives a message id that no message of the conversation has."""

    code = "unknown_message"

    def __init__(self) -> None:
        super().__init__("Message does not exist")
