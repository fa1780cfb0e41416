"""Garbage collection: finds and removes data in a store that is no longer needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from parley.errors import OwnedElsewhere, UnknownConversation, Unreadable
from parley.ports.store import ConversationListing, Freed, MaintainedStore, PageCursor, Query, Store
from parley.wire.ids import ConversationId

__all__ = ["Removed", "Unneeded", "find_unneeded", "remove_unneeded"]

DAY_SECONDS: Final = 86_400
LISTED_AT_ONCE: Final = 1000


class Unneeded(NamedTuple):
    """The conversations and blobs that can be removed from a store, and the space that can be reclaimed."""

    conversations: Sequence[ConversationListing]
    conversation_bytes: int
    blobs: Freed
    reclaimable_bytes: int
    """The total size, in bytes, of the free space in the database and of the entries of deleted conversations."""


class Removed(NamedTuple):
    conversations: int
    blobs: Freed


async def find_unneeded(store: MaintainedStore, *, keep_days: int, now: float) -> Unneeded:
    """Return the archived conversations without activity for `keep_days` days, the unused blobs, and the space that
    can be reclaimed. `now` is the current time, in seconds since the epoch.

    If `keep_days` is 0, the result contains no conversations.
    """
    expired = await _archived_before(store, now - keep_days * DAY_SECONDS) if keep_days else []
    size = 0
    for listed in expired:
        with suppress(Unreadable):  # a damaged conversation is removed too, but its size is unknown
            size += await store.log_bytes(listed.conversation_id)
    return Unneeded(expired, size, await store.unused_blobs(), await store.reclaimable_bytes())


async def _archived_before(store: Store, before: float) -> list[ConversationListing]:
    """Return the archived conversations whose last activity was earlier than the time `before`, in seconds since
    the epoch.
    """
    found: list[ConversationListing] = []
    after: PageCursor = (before, ConversationId(""))  # all conversations with this time are before this position
    while True:
        page = await store.find(Query(archived=True, after=after, limit=LISTED_AT_ONCE))
        found += page.items
        if not page.more:
            return found
        after = page.items[-1].cursor


async def remove_unneeded(store: MaintainedStore, unneeded: Unneeded) -> Removed:
    """Remove the conversations in `unneeded`, and then all unused blobs. Return what was removed.

    A conversation is not removed if, since `unneeded` was determined, it has been active or has been taken out of
    the archive.
    """
    removed = 0
    for listed in unneeded.conversations:
        with suppress(OwnedElsewhere, UnknownConversation):
            lease = await store.acquire(listed.conversation_id, address="")
            if await _is_as_before(store, listed):
                await store.delete(lease, leave_entries=True)
                removed += 1
            else:
                await store.release(lease)
    return Removed(removed, await store.tidy())


async def _is_as_before(store: Store, listed: ConversationListing) -> bool:
    """Return whether a conversation is still archived and has had no activity since it was listed."""
    try:
        head = await store.head(listed.conversation_id)
    except Unreadable:  # the conversation is compared with a new listing instead
        again = await store.find(Query(archived=True, conversation=listed.conversation_id))
        return [one.summary for one in again.items] == [listed.summary]
    return head.archived and head.summary == listed.summary
