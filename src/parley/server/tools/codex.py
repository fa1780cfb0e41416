"""`codex`: begin a conversation, run one turn, answer when it ends."""

from __future__ import annotations

from parley.config.types import Settings, Wanted
from parley.errors import NotSupportedYet
from parley.server.historyfile import history_file
from parley.server.toolcall import ToolCall
from parley.server.toolservers import announce_tool_servers
from parley.server.turncall import TurnCall
from parley.wire.events import SessionConfigured
from parley.wire.ids import ConversationId
from parley.wire.tools import CodexArguments

__all__ = ["codex"]


async def codex(call: ToolCall, args: CodexArguments) -> None:
    if args.include_plan_tool:
        raise NotSupportedYet("include-plan-tool")
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
    turn = TurnCall(call, conversation)
    turn.say(_configured(conversation.id, settings))
    await turn.run_first(args.prompt)


def _configured(session_id: ConversationId, settings: Settings) -> SessionConfigured:
    inode, lines = history_file(settings.home)
    return SessionConfigured(
        session_id=session_id, model=settings.model, history_log_id=inode, history_entry_count=lines
    )
