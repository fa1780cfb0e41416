"""Opening a conversation with what a call asks for."""

from __future__ import annotations

from parley.config.types import Wanted
from parley.runtime.conversations import Conversation
from parley.server.host import Host
from parley.wire.events import ErrorEvent
from parley.wire.tools import CodexArguments, ConversationCreateArguments

__all__ = ["open_conversation"]


async def open_conversation(host: Host, args: CodexArguments | ConversationCreateArguments) -> Conversation:
    """A new conversation.

    Raises:
        ConfigError: the settings cannot be used.
        ShuttingDown: the server ends.
    """
    wanted = Wanted(
        model=args.model,
        profile=args.profile,
        cwd=args.cwd,
        approval_policy=args.approval_policy,
        sandbox=args.sandbox,
        base_instructions=args.base_instructions,
        config=args.config,
    )
    conversation = host.conversations.create(host.loader.resolve(wanted))
    await _announce_tool_servers(conversation)
    return conversation


async def _announce_tool_servers(conversation: Conversation) -> None:
    """This version cannot start them: put the failure of each where clients look for it."""
    for name in conversation.settings.mcp_servers:
        text = f"MCP client for `{name}` failed to start: tool servers are not supported yet"
        await conversation.append(ErrorEvent(message=text))
