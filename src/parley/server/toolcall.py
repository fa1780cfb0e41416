"""One call of a tool: its client, and how to answer."""

from __future__ import annotations

from uuid import UUID

from msgspec import UNSET, Raw, UnsetType

from parley.ports.store import CALL_SECONDS
from parley.runtime.conversation import Conversation
from parley.runtime.deadline import Deadline
from parley.server.context import ServerContext
from parley.server.dispatch import Call
from parley.server.hosts import Features
from parley.server.session import Session
from parley.server.streams import Streams
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.mcp import CallToolParams, CallToolResult

__all__ = ["ToolCall"]


class ToolCall:
    """One call of a tool, as its handler gets it."""

    def __init__(
        self, call: Call, params: CallToolParams, session: Session, streams: Streams, server: ServerContext
    ) -> None:
        self.call, self.session, self.streams, self.server = call, session, streams, server
        self._arguments = params.arguments
        self.deadline = Deadline(CALL_SECONDS)
        """How long this call waits for other processes."""

        self.progress_token: RequestId | None = None
        if params.meta and params.meta.progress_token is not UNSET:
            self.progress_token = params.meta.progress_token

    @property
    def features(self) -> Features:
        """The features of the client."""
        return self.call.context.features

    def take_arguments(self) -> Raw | UnsetType:
        """Return the encoded arguments, once: they may be large, and the caller frees them."""
        arguments, self._arguments = self._arguments, UNSET
        return arguments

    def conversation_for_command(self, conversation_id: UUID) -> Conversation:
        """Return a conversation for a command, which fails if it does not exist.

        Nothing is awaited, so that commands are executed in the order in which they came.
        """
        return self.server.conversations.get(ConversationId(str(conversation_id)))

    async def conversation(self, conversation_id: UUID) -> Conversation:
        """Return a conversation with a current log.

        Raises:
            UnknownConversation: no conversation has this id.
            StoreError: it cannot be read.
        """
        return await self.server.conversations.find(ConversationId(str(conversation_id)))

    def answer(self, result: CallToolResult) -> None:
        """Answer now, for a tool that has more to do afterwards."""
        self.call.answer(encode(result))
