"""One call of a tool: who calls, and how to answer."""

from __future__ import annotations

from uuid import UUID

from msgspec import UNSET, Raw, UnsetType

from parley.ports.store import CALL_SECONDS
from parley.runtime.conversation import Conversation
from parley.runtime.deadline import Deadline
from parley.server.context import ServerContext
from parley.server.dispatch import Call
from parley.server.session import Session
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.mcp import CallToolParams, CallToolResult

__all__ = ["ToolCall"]


class ToolCall:
    def __init__(self, call: Call, params: CallToolParams, session: Session, host: ServerContext) -> None:
        self.call, self.session, self.host = call, session, host
        self._arguments = params.arguments
        self.deadline = Deadline(CALL_SECONDS)
        """How long this call waits for other processes."""

        self.progress_token: RequestId | None = None
        if params.meta and params.meta.progress_token is not UNSET:
            self.progress_token = params.meta.progress_token

    def take_arguments(self) -> Raw | UnsetType:
        """The arguments as they came; from now on they are the caller's, and nothing else holds them."""
        arguments, self._arguments = self._arguments, UNSET
        return arguments

    async def conversation(self, conversation_id: UUID) -> Conversation:
        """Raises UnknownConversation, StoreError."""
        return await self.host.conversations.find(ConversationId(str(conversation_id)))

    def answer(self, result: CallToolResult) -> None:
        """Answer now, for a tool that has more to do afterwards."""
        self.call.answer(encode(result))
