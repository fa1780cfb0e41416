"""Errors that only the runtime raises."""

from __future__ import annotations

from parley.errors import InvalidRequest

__all__ = ["MessageIdTaken", "NothingToContinue", "RemoteRefusal", "UnknownApproval"]


class MessageIdTaken(InvalidRequest):
    """The message id belongs to a message with other content."""

    code = "message_id_taken"

    def __init__(self, message_id: str) -> None:
        super().__init__("Message id was used for another message")
        self.message_id = message_id


class NothingToContinue(InvalidRequest):
    """No turn was cut short or failed."""

    code = "nothing_to_continue"

    def __init__(self) -> None:
        super().__init__("Nothing to continue")


class UnknownApproval(InvalidRequest):
    """No approval has this id."""

    code = "unknown_approval"

    def __init__(self) -> None:
        super().__init__("Question does not exist")


class RemoteRefusal(InvalidRequest):
    """The process that runs the conversation refused the request. The error has the text and the code of that
    refusal.
    """

    code = "refused"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).code
