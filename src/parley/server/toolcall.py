"""One call of a tool, with its sender and the method that sends the response."""

from __future__ import annotations

from uuid import UUID

from msgspec import UNSET, Raw, UnsetType

from parley.common.telemetry import telemetry
from parley.ports.store import CALL_SECONDS
from parley.runtime.conversation import Conversation
from parley.runtime.deadline import Deadline
from parley.server.access import require_conversation
from parley.server.context import Principal, ServerContext
from parley.server.dispatch import Call
from parley.server.hosts import Features
from parley.server.modern.rounds import Rounds
from parley.server.session import Session
from parley.server.streams import Streams
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.mcp import CallToolParams, CallToolResult

__all__ = ["ToolCall"]


class ToolCall:
    """One call of a tool. The handler of the tool gets this object."""

    def __init__(
        self, call: Call, params: CallToolParams, session: Session, streams: Streams, server: ServerContext
    ) -> None:
        self.call, self.session, self.streams, self.server = call, session, streams, server
        self._arguments = params.arguments
        telemetry.annotate(tool=params.name)
        self.rounds: Rounds | None = None
        """The approval requests of a call at protocol version 2026-07-28; None if the call cannot ask for
        approvals.
        """
        self.deadline = Deadline(CALL_SECONDS)
        """The time until which this call waits for other processes."""

        self.is_task = False
        """True if the call runs as a task."""
        self.progress_token: RequestId | None = None
        if params.meta and params.meta.progress_token is not UNSET:
            self.progress_token = params.meta.progress_token

    @property
    def principal(self) -> Principal:
        """The principal that sent the call."""
        return self.call.context.principal

    @property
    def features(self) -> Features:
        """The features of the client."""
        return self.call.context.features

    def take_arguments(self) -> Raw | UnsetType:
        """Return the encoded arguments, and remove this object's reference to them.

        Arguments may be large, and without this reference they can be freed as soon as the caller no longer needs
        them.
        """
        arguments, self._arguments = self._arguments, UNSET
        return arguments

    def conversation_for_command(self, conversation_id: UUID) -> Conversation:
        """Return a conversation for a command, without checking that the conversation exists. If the conversation
        does not exist, the command itself fails. Nothing is awaited, so commands are executed in the order of their
        arrival.

        Raises:
            UnknownConversation: the sender is not allowed to see the conversation.
        """
        return self.server.conversations.get(self.visible(conversation_id))

    async def conversation(self, conversation_id: UUID) -> Conversation:
        """Return a conversation after its log in memory has been brought up to date."""
        return await self.server.conversations.find(self.visible(conversation_id))

    def visible(self, conversation_id: UUID) -> ConversationId:
        """Check that the sender may see a conversation, and return the id of the conversation.

        Raises:
            UnknownConversation: the sender is not allowed to see the conversation.
        """
        found = ConversationId(str(conversation_id))
        require_conversation(self.principal, found)
        return found

    def answer(self, result: CallToolResult) -> None:
        """Send the result as the response. The tool may continue to work after this call."""
        self.call.answer(encode(result))
