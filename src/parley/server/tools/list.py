"""The tool `conversationsList`, which lists conversations in pages. The conversation with the latest activity is
first.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from parley.ports.store import ConversationListing, Query
from parley.server.hosts import Features
from parley.server.page_cursors import CONVERSATIONS, decode_cursor, encode_cursor
from parley.server.times import iso
from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationsListArguments, ConversationsListResult, ConversationSummary

__all__ = ["list_conversations", "summary_of"]

DEFAULT_LIMIT: Final = 50


async def list_conversations(call: ToolCall, args: ConversationsListArguments) -> CallToolResult:
    query = Query(
        cwd=args.cwd,
        text=args.text or None,
        state=args.state,
        archived=bool(args.archived),
        conversation=call.principal.conversation,
        viewer=call.principal.viewer,
        after=decode_cursor(args.cursor, CONVERSATIONS) if args.cursor is not None else None,
        limit=args.limit or DEFAULT_LIMIT,
    )
    if query.text is None:
        found = await call.server.conversations.page(query)
    else:
        async with call.server.searches.of(call.principal.key):
            found = await call.server.conversations.page(query)
    result = ConversationsListResult(
        conversations=tuple(summary_of(one, call.features) for one in found.items),
        next_cursor=encode_cursor(found.items[-1].cursor) if found.more else UNSET,
    )
    return typed_result(result)


def summary_of(listed: ConversationListing, features: Features) -> ConversationSummary:
    """Convert a listed conversation to the struct that a client with the features `features` gets."""
    summary = listed.summary
    has_failed = summary.state == "idle" and summary.outcome is not None and summary.outcome.has_failed
    return ConversationSummary(
        conversation_id=listed.conversation_id,
        title=summary.title,
        updated_at=iso(summary.updated_at) if features.additions else UNSET,
        cwd=summary.cwd if features.additions else UNSET,
        state=summary.state if features.additions else UNSET,
        unread=listed.unread if features.additions else UNSET,
        failed=has_failed if features.additions else UNSET,
    )
