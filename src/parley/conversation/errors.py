"""Errors that only the pure model of a conversation raises."""

from __future__ import annotations

from parley.errors import InvalidRequest

__all__ = ["EarlierEntriesNeeded", "ParentUnknown", "UnknownMessage"]


class EarlierEntriesNeeded(ValueError):
    """A message is missing in projections that were restored from a checkpoint. The log must be folded from its
    first entry.
    """

    def __init__(self, message_id: str) -> None:
        super().__init__(f"message {message_id} is before the checkpoint")
        self.message_id = message_id


class ParentUnknown(InvalidRequest):
    """No message has the id of the parent."""

    code = "unknown_parent"

    def __init__(self, message_id: str) -> None:
        super().__init__("Parent message does not exist")
        self.message_id = message_id


class UnknownMessage(InvalidRequest):
    """No message has this id."""

    code = "unknown_message"

    def __init__(self) -> None:
        super().__init__("Message does not exist")
