"""What was chosen for a conversation, message by message."""

from __future__ import annotations

from parley.config.types import Chosen
from parley.errors import ParentUnknown
from parley.wire.ids import ConversationId, MessageId

__all__ = ["Choices"]


class Choices:
    """What holds now, and what held behind each message: a branch begins with that."""

    def __init__(self, conversation_id: ConversationId, chosen: Chosen) -> None:
        self.now = chosen
        # The conversation's own id as parent means: before the first message.
        self._behind: dict[MessageId, Chosen] = {MessageId(conversation_id): chosen}

    def behind(self, message_id: MessageId | None) -> Chosen:
        """What held behind a message; now, where none is named.

        Raises:
            ParentUnknown: there is no such message.
        """
        if message_id is None:
            return self.now
        try:
            return self._behind[message_id]
        except KeyError:
            raise ParentUnknown(message_id) from None

    def take(self, message_id: MessageId, chosen: Chosen) -> None:
        """From this message on this holds."""
        self.now = self._behind[message_id] = chosen
