"""The tool `conversationSearch`, which finds messages from the user and from the agent. The newest message is
first.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, cast

import msgspec
from msgspec import UNSET, Meta

from parley.errors import BadArguments
from parley.ports.store import SearchHit, SearchQuery
from parley.server.page_cursors import decode_cursor, encode_cursor
from parley.server.times import iso
from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationSearchArguments, ConversationSearchResult, FoundMessage

__all__ = ["search"]

DEFAULT_LIMIT: Final = 20
MAX_STEPS: Final = 100
"""The maximum number of searches in the store for one tool call. Each search examines a limited part of the
messages, so that other calls can use the store between two searches.
"""

_POSITIONS: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(Annotated[int, Meta(ge=1, le=2**63 - 1)])


async def search(call: ToolCall, args: ConversationSearchArguments) -> CallToolResult:
    if not args.text:
        raise BadArguments("`text` is empty", field="text")
    conversation = call.principal.conversation
    if args.conversation_id is not None:
        conversation = call.visible(args.conversation_id)
    before = None if args.cursor is None else decode_cursor(args.cursor, _POSITIONS)
    limit, found = args.limit or DEFAULT_LIMIT, list[SearchHit]()
    async with call.server.searches.of(call.principal.key):
        for _ in range(MAX_STEPS):
            if call.call.cancelled or call.session.has_left:
                break
            query = SearchQuery(text=args.text, conversation=conversation, before=before, limit=limit - len(found))
            page = await call.server.conversations.search(query)
            found += page.hits
            before = page.next
            if before is None or len(found) == limit or call.server.conversations.closing:
                break
    result = ConversationSearchResult(
        messages=tuple(map(_found, found)), next_cursor=UNSET if before is None else encode_cursor(before)
    )
    return typed_result(result)


def _found(hit: SearchHit) -> FoundMessage:
    return FoundMessage(
        conversation_id=hit.conversation_id,
        title=hit.title,
        seq=hit.seq,
        type=cast(Literal["user_message", "agent_message"], hit.type),
        at=iso(hit.at),
        snippet=hit.snippet,
        start=hit.start,
        end=hit.end,
    )
