"""`conversationRead`: what is newer than a position, for clients that cannot take notifications."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from msgspec import Raw

from parley.conversation.log import Entry
from parley.errors import PositionBeyondEnd
from parley.server.toolcall import ToolCall
from parley.server.voices import hidden_events
from parley.wire.ids import Seq
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationReadArguments, ConversationReadResult, OpenText, PositionedEvent

__all__ = ["read"]

DEFAULT_LIMIT: Final = 100


async def read(call: ToolCall, args: ConversationReadArguments) -> CallToolResult:
    conversation = call.conversation(args.conversation_id)
    log = conversation.log
    after, limit = Seq(args.after or 0), args.limit or DEFAULT_LIMIT
    if after > log.last:
        raise PositionBeyondEnd(after=after, last=log.last)
    hidden = hidden_events(full=call.session.full)

    def newer() -> list[Entry]:
        return list(islice(log.events(after=after, hidden=hidden), limit + 1))

    found = newer()
    if not found and args.wait_seconds:
        try:
            async with asyncio.timeout(args.wait_seconds):
                while not found and not call.host.conversations.closing:
                    await conversation.wait_beyond(log.last)
                    found = newer()
        except TimeoutError:
            # Nothing new is an answer too; but the answer goes up to the end of the log, and something
            # may have been appended in the moment in which the time was over.
            found = newer()
    page, more = found[:limit], len(found) > limit
    result = ConversationReadResult(
        events=tuple(PositionedEvent(seq=entry.seq, msg=Raw(entry.encoded)) for entry in page),
        open=()
        if more
        else tuple(OpenText(item=item.id, type=item.type, text=item.text()) for item in log.open.values()),
        seq=page[-1].seq if more else log.last,
        state=conversation.state.phase.value,
    )
    return typed_result(result)
