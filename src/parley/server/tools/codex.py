"""The tool `codex`, which creates a conversation, runs one turn, and returns its result when the turn ends."""

from __future__ import annotations

from msgspec.structs import replace

from parley.config.types import Settings
from parley.server.historyfile import history_file
from parley.server.opening import open_conversation
from parley.server.task_calls import run_as_task
from parley.server.toolcall import ToolCall
from parley.server.turn_waiter import TurnWaiter, resumed
from parley.wire.events import SessionConfigured
from parley.wire.ids import ConversationId, EventId
from parley.wire.items import TextItem, compact
from parley.wire.tools import PlainCodexArguments

__all__ = ["codex"]


async def codex(call: ToolCall, args: PlainCodexArguments) -> None:
    if await resumed(call):
        return
    words = compact((TextItem(text=args.prompt),))
    args = replace(args, prompt="")  # the prompt may be large and is no longer needed, and the turn may take long
    conversation = await open_conversation(call, args)
    if call.is_task:
        conversation.start_tool_servers()
        await conversation.tool_servers_started()
        await run_as_task(call, conversation, words, event_id=EventId(str(call.call.id)))
        return
    configured = await _configured(conversation.id, conversation.settings)
    turn = TurnWaiter(call, conversation)
    turn.send(configured)
    conversation.start_tool_servers()
    call.call.on_cancel(turn.cancel_before_it_begins)
    await conversation.tool_servers_started()  # failures are reported before the turn begins
    await turn.run_first(words)


async def _configured(session_id: ConversationId, settings: Settings) -> SessionConfigured:
    inode, lines = await history_file(settings.home)
    return SessionConfigured(
        session_id=session_id, model=settings.model, history_log_id=inode, history_entry_count=lines
    )
