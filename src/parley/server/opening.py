"""Creates a conversation with the settings in the arguments of a tool call."""

from __future__ import annotations

from msgspec.structs import replace

from parley.config.types import SettingsOverrides
from parley.errors import BadArguments
from parley.runtime.conversation import Conversation
from parley.server.access import allowed_overrides
from parley.server.toolcall import ToolCall
from parley.wire.tools import (
    CodexArguments,
    ConversationCreateArguments,
    PlainCodexArguments,
    PlainConversationCreateArguments,
)

__all__ = ["open_conversation"]


async def open_conversation(
    call: ToolCall,
    args: PlainCodexArguments | PlainConversationCreateArguments | ConversationCreateArguments,
) -> Conversation:
    """Create a conversation with the settings in `args`, and return the conversation. The settings loader of the
    client resolves these settings.

    Raises:
        BadArguments: a call of `conversationCreate` names neither a directory nor a repository.
        ConfigError: the settings cannot be used.
        SettingNotAllowed: the sender is not allowed to choose these settings.
        ShuttingDown: the server is shutting down.
        StoreError: the conversation cannot be stored.
    """
    repository = args.repository if isinstance(args, CodexArguments | ConversationCreateArguments) else None
    if isinstance(args, ConversationCreateArguments) and repository is None and args.cwd is None:
        raise BadArguments("missing field `cwd`", field="cwd")
    wanted = SettingsOverrides(
        model=args.model,
        profile=args.profile,
        cwd=args.cwd,
        repository=repository,
        approval_policy=args.approval_policy,
        sandbox=args.sandbox,
        base_instructions=args.base_instructions,
        config=args.config,
    )
    if isinstance(args, PlainCodexArguments):
        wanted = replace(
            wanted,
            compact_prompt=args.compact_prompt,
            developer_instructions=args.developer_instructions,
            include_plan_tool=args.include_plan_tool,
        )
    wanted = allowed_overrides(call.principal, wanted, call.session.loader)
    return await call.server.conversations.create(wanted, call.session.loader.choose)
