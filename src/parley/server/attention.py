"""Finds the conversations that need the attention of a person. These conversations are waiting for an answer, or
contain the unread end of a turn.

The store finds these conversations with an index. The index does not contain approvals, so each waiting
conversation is loaded to include its open approval in the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from parley.conversation.state import TurnOutcome
from parley.ports.store import ConversationListing, PageCursor, Query, UnreadEnd
from parley.runtime.registry import ConversationRegistry
from parley.server.approval_text import listed as listed_approval
from parley.server.context import Principal
from parley.server.times import iso
from parley.wire.tools import AttentionItem, AttentionState

__all__ = ["POSITIONS", "AttentionPage", "AttentionPosition", "attention"]

STATES: Final[tuple[AttentionState, ...]] = get_args(AttentionState)
"""The states in which a conversation needs attention, in the order in which `attention` returns them."""
MAX_ORPHANED: Final = 1000
"""The maximum number of unfinished turns that `attention` checks to find orphaned turns. An orphaned turn is an
unfinished turn whose process was killed.
"""

AttentionPosition = tuple[AttentionState, PageCursor | None]
"""A position in the list of conversations that need attention: a state, and a position among the conversations in
this state. If the second part is None, the position is before the first conversation in this state.
"""

POSITIONS: Final[msgspec.json.Decoder[AttentionPosition]] = msgspec.json.Decoder(AttentionPosition)


class AttentionPage(NamedTuple):
    """A page of the list of conversations that need attention."""

    items: tuple[AttentionItem, ...]
    rest: AttentionPosition | None
    """The position at which the next page begins; None after the last page."""


async def attention(
    conversations: ConversationRegistry, principal: Principal, *, after: AttentionPosition | None = None, limit: int
) -> AttentionPage:
    """Return a page of the conversations that need attention and that the principal may see.

    `after` is the value of `rest` in the previous page; None for the first page. `limit` is the maximum number of
    conversations.

    Raises:
        StoreError: the store cannot be searched.
    """
    mine = Query(conversation=principal.conversation, viewer=principal.viewer)
    if after is None:
        # `page` ends the turns whose process was killed. Before this call, the index reports them as running.
        await conversations.page(replace(mine, state="running", archived=None, limit=MAX_ORPHANED))
    first, place = ("waiting", None) if after is None else after
    items: list[AttentionItem] = []
    left = limit
    for state in STATES[STATES.index(first) :]:
        query = replace(mine, after=place, limit=left)
        if state == "waiting":
            found = await conversations.page(replace(query, state="asking", archived=None))
            items += await _waiting(conversations, found.items)
        else:
            found = await conversations.page(replace(query, unread=state))
            items += [_ended(one, state, one.summary.outcome) for one in found.items if one.summary.outcome]
        if found.more:
            return AttentionPage(tuple(items), (state, found.items[-1].cursor if found.items else None))
        left, place = left - len(found.items), None
    return AttentionPage(tuple(items), None)


async def _waiting(
    conversations: ConversationRegistry, found: Sequence[ConversationListing]
) -> Iterator[AttentionItem]:
    # The conversations are loaded concurrently, because an unresponsive owner delays its conversation by seconds.
    loaded = await asyncio.gather(*(conversations.find_if_possible(one.conversation_id) for one in found))
    return (
        AttentionItem(
            conversation_id=one.conversation_id,
            title=one.summary.title,
            cwd=one.summary.cwd,
            state="waiting",
            since=iso(approval.at),
            approval=listed_approval(approval, one.conversation_id),
        )
        for one, conversation in zip(found, loaded, strict=True)
        if conversation is not None and (approval := conversation.approvals.open) is not None
    )


def _ended(one: ConversationListing, state: UnreadEnd, outcome: TurnOutcome) -> AttentionItem:
    return AttentionItem(
        conversation_id=one.conversation_id,
        title=one.summary.title,
        cwd=one.summary.cwd,
        state=state,
        since=iso(outcome.at),
        reason=outcome.reason,
        message=outcome.text or UNSET,
        code=outcome.code or UNSET,
        seq=outcome.seq,
    )
