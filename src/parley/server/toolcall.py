"""A tool call with its sender and its response, as the server passes it to the handler of the tool."""

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
    """One tool call, as it is passed to the handler of the tool."""

    def __init__(
        self, call: Call, params: CallToolParams, session: Session, streams: Streams, server: ServerContext
    ) -> None:
        self.call, self.session, self.streams, self.server = call, session, streams, server
        self._arguments = params.arguments
        telemetry.annotate(tool=params.name)
        self.rounds: Rounds | None = None
        """The approval requests of a call at protocol version 2026-07-28; None if the call cannot end with an
        approval request.
        """
        self.deadline = Deadline(CALL_SECONDS)
        """The deadline for waiting for other processes, `CALL_SECONDS` after the beginning of the call."""

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

        Arguments may be large. Without this reference, they can be freed as soon as the caller no longer needs
        them.
        """
        arguments, self._arguments = self._arguments, UNSET
        return arguments

    def conversation_for_command(self, conversation_id: UUID) -> Conversation:
        """Return the given conversation for a command, without checking that the conversation exists. If it does
        not exist, the command itself fails. Nothing is awaited, so commands are executed in the order in which they
        arrive.

        Raises:
            UnknownConversation: the sender is not allowed to see the conversation.
        """
        return self.server.conversations.get(self.visible(conversation_id))

    async def conversation(self, conversation_id: UUID) -> Conversation:
        """Return the given conversation, after its log in memory has been brought up to date.

        Raises:
            UnknownConversation: the conversation does not exist, or the sender is not allowed to see it.
            StoreError: the conversation cannot be read.
        """
        return await self.server.conversations.find(self.visible(conversation_id))

    def visible(self, conversation_id: UUID) -> ConversationId:
        """Check that the sender may see the given conversation, and return its id.

        Raises:
            UnknownConversation: the sender is not allowed to see the conversation.
        """
        found = ConversationId(str(conversation_id))
        require_conversation(self.principal, found)
        return found

    def answer(self, result: CallToolResult) -> None:
        """Send the result as the response. The handler of the tool may continue to run after that."""
        self.call.answer(encode(result))
