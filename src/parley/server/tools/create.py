"""`conversationCreate`: open a conversation and answer when it is ready."""

from __future__ import annotations

from parley.config.types import Wanted
from parley.server.toolcall import ToolCall
from parley.server.toolservers import announce_tool_servers
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationCreateArguments, ConversationCreated

__all__ = ["create"]


async def create(call: ToolCall, args: ConversationCreateArguments) -> CallToolResult:
    settings = call.host.loader.resolve(
        Wanted(
            model=args.model,
            profile=args.profile,
            cwd=args.cwd,
            approval_policy=args.approval_policy,
            sandbox=args.sandbox,
            base_instructions=args.base_instructions,
            config=args.config,
        )
    )
    conversation = call.host.conversations.create(settings)
    await announce_tool_servers(conversation)
    return typed_result(ConversationCreated(conversation_id=conversation.id, model=settings.model))
