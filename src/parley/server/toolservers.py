"""Tool servers that are configured: this version cannot start them, and says so."""

from __future__ import annotations

from parley.runtime.conversations import Conversation
from parley.wire.events import ErrorEvent

__all__ = ["announce_tool_servers"]


async def announce_tool_servers(conversation: Conversation) -> None:
    """Put the failure of each into the conversation, where clients look for it."""
    for name in conversation.settings.mcp_servers:
        text = f"MCP client for `{name}` failed to start: tool servers are not supported yet"
        await conversation.append(ErrorEvent(message=text))
