"""`codex`: begin a conversation, run one turn, answer when it ends."""

from __future__ import annotations

from parley.config.types import Settings
from parley.errors import NotSupportedYet
from parley.server.historyfile import history_file
from parley.server.opening import open_conversation
from parley.server.toolcall import ToolCall
from parley.server.turncall import TurnCall
from parley.wire.events import SessionConfigured
from parley.wire.ids import ConversationId
from parley.wire.tools import CodexArguments

__all__ = ["codex"]


async def codex(call: ToolCall, args: CodexArguments) -> None:
    if args.include_plan_tool:
        raise NotSupportedYet("include-plan-tool")
    conversation = await open_conversation(call.host, args)
    turn = TurnCall(call, conversation)
    turn.say(_configured(conversation.id, conversation.settings))
    await turn.run_first(args.prompt)


def _configured(session_id: ConversationId, settings: Settings) -> SessionConfigured:
    inode, lines = history_file(settings.home)
    return SessionConfigured(
        session_id=session_id, model=settings.model, history_log_id=inode, history_entry_count=lines
    )
