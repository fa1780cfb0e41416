"""The tool `codex-reply`, which sends a message to an existing conversation, and returns the result of the turn
when the turn ends.
"""

from __future__ import annotations

from uuid import UUID

from parley.server.errors import BadSessionId
from parley.server.task_calls import run_as_task
from parley.server.toolcall import ToolCall
from parley.server.turn_waiter import TurnWaiter, resumed
from parley.wire.items import TextItem, compact
from parley.wire.tools import CodexReplyArguments

__all__ = ["codex_reply"]


async def codex_reply(call: ToolCall, args: CodexReplyArguments) -> None:
    if await resumed(call):
        return
    try:
        conversation_id = UUID(args.thread_id)
    except ValueError:
        raise BadSessionId(args.thread_id) from None
    words = compact((TextItem(text=args.prompt),))
    del args  # the prompt may be large and is no longer needed, and the turn may take long
    conversation = call.conversation_for_command(conversation_id)
    if call.is_task:
        await run_as_task(call, conversation, words)
    else:
        await TurnWaiter(call, conversation).run_next(words)
