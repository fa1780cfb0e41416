"""`conversationsList`: all conversations, latest activity first, page by page."""

from __future__ import annotations

import base64
from typing import Final

import msgspec
from msgspec import UNSET

from parley.errors import BadCursor, NotSupportedYet
from parley.runtime.conversations import Conversation
from parley.server.times import iso
from parley.server.toolcall import ToolCall
from parley.wire.ids import ConversationId
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationsListArguments, ConversationsListResult, ConversationSummary

__all__ = ["list_conversations"]

DEFAULT_LIMIT: Final = 50

Place = tuple[float, ConversationId]
"""Where a conversation stands in the list: minus its last activity, then its id."""

_decoder: Final[msgspec.json.Decoder[Place]] = msgspec.json.Decoder(Place)


async def list_conversations(call: ToolCall, args: ConversationsListArguments) -> CallToolResult:
    for name in ("cwd", "text", "state"):
        if getattr(args, name) is not None:
            raise NotSupportedYet(f"{name} of conversationsList")
    if args.archived:
        raise NotSupportedYet("archived of conversationsList")
    behind = _decode(args.cursor) if args.cursor is not None else None
    limit = args.limit or DEFAULT_LIMIT
    found = sorted(call.host.conversations, key=_place)
    if behind is not None:
        found = [one for one in found if _place(one) > behind]
    page = found[:limit]
    result = ConversationsListResult(
        conversations=tuple(_summary(one, full=call.session.full) for one in page),
        next_cursor=_encode(_place(page[-1])) if len(found) > limit else UNSET,
    )
    return typed_result(result)


def _place(conversation: Conversation) -> Place:
    return -conversation.state.updated_at, conversation.id


def _summary(conversation: Conversation, *, full: bool) -> ConversationSummary:
    state = conversation.state
    return ConversationSummary(
        conversation_id=conversation.id,
        title=state.title,
        updated_at=iso(state.updated_at) if full else UNSET,
        cwd=state.cwd if full else UNSET,
        state=state.phase.value if full else UNSET,
    )


def _encode(place: Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _decode(cursor: str) -> Place:
    try:
        return _decoder.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, msgspec.DecodeError):
        raise BadCursor(cursor) from None
