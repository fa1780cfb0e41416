"""The tool `attentionList`, which lists the conversations that need the attention of a person."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from parley.server.attention import POSITIONS, attention
from parley.server.page_cursors import decode_cursor, encode_cursor
from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import AttentionListArguments, AttentionListResult

__all__ = ["list_attention"]

DEFAULT_LIMIT: Final = 50


async def list_attention(call: ToolCall, args: AttentionListArguments) -> CallToolResult:
    after = None if args.cursor is None else decode_cursor(args.cursor, POSITIONS)
    found = await attention(
        call.server.conversations, call.principal, after=after, limit=args.limit or DEFAULT_LIMIT
    )
    next_cursor = UNSET if found.rest is None else encode_cursor(found.rest)
    return typed_result(AttentionListResult(conversations=found.items, next_cursor=next_cursor))
