"""`conversationsList`: list conversations in pages, latest activity first."""

from __future__ import annotations

import base64
from typing import Final

import msgspec
from msgspec import UNSET

from parley.ports.store import ConversationListing, PageCursor, Query
from parley.server.errors import BadCursor
from parley.server.hosts import Features
from parley.server.times import iso
from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationsListArguments, ConversationsListResult, ConversationSummary

__all__ = ["list_conversations"]

DEFAULT_LIMIT: Final = 50

_decoder: Final[msgspec.json.Decoder[PageCursor]] = msgspec.json.Decoder(PageCursor)


async def list_conversations(call: ToolCall, args: ConversationsListArguments) -> CallToolResult:
    query = Query(
        cwd=args.cwd,
        text=args.text or None,
        state=args.state,
        archived=bool(args.archived),
        after=_decode(args.cursor) if args.cursor is not None else None,
        limit=args.limit or DEFAULT_LIMIT,
    )
    found = await call.server.conversations.page(query)
    result = ConversationsListResult(
        conversations=tuple(_summary(one, call.features) for one in found.items),
        next_cursor=_encode(found.items[-1].cursor) if found.more else UNSET,
    )
    return typed_result(result)


def _summary(listed: ConversationListing, features: Features) -> ConversationSummary:
    summary = listed.summary
    return ConversationSummary(
        conversation_id=listed.conversation_id,
        title=summary.title,
        updated_at=iso(summary.updated_at) if features.additions else UNSET,
        cwd=summary.cwd if features.additions else UNSET,
        state=summary.state if features.additions else UNSET,
    )


def _encode(place: PageCursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _decode(cursor: str) -> PageCursor:
    try:
        return _decoder.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, msgspec.DecodeError):
        raise BadCursor(cursor) from None
