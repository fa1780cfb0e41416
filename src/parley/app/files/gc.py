"""Garbage collection of a home directory: finds and removes data that is no longer needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Final, NamedTuple

from parley.errors import OwnedElsewhere, UnknownConversation, Unreadable
from parley.ports.store import ConversationListing
from parley.stores.sqlite.maintenance import Freed
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import START

__all__ = ["Removed", "Unneeded", "find_unneeded", "remove_unneeded"]

DAY_SECONDS: Final = 86_400


class Unneeded(NamedTuple):
    """The data that can be removed."""

    conversations: Sequence[ConversationListing]
    conversation_bytes: int
    blobs: Freed
    reclaimable_bytes: int
    """The free space in the database, in bytes."""


class Removed(NamedTuple):
    conversations: int
    blobs: Freed


async def find_unneeded(store: SqliteStore, *, keep_days: int, now: float) -> Unneeded:
    """Find archived conversations that have had no activity for `keep_days` days, unused blobs, and free space.

    If `keep_days` is 0, no conversations are returned.
    """
    expired = await store.expired(archived_before=now - keep_days * DAY_SECONDS) if keep_days else []
    size = 0
    for listed in expired:
        at = START
        with suppress(
            Unreadable, UnknownConversation
        ):  # a damaged conversation is removed too; its size is unknown
            while page := await store.read(listed.conversation_id, after=at):
                at = page[-1].seq
                size += sum(len(entry.body) for entry in page)
    return Unneeded(expired, size, await store.unused_blobs(), await store.reclaimable_bytes())


async def remove_unneeded(store: SqliteStore, unneeded: Unneeded) -> Removed:
    """Remove the given conversations, except those that have become active again, and then all unused blobs."""
    removed = 0
    for listed in unneeded.conversations:
        with suppress(OwnedElsewhere, UnknownConversation):
            lease = await store.acquire(listed.conversation_id, address="")
            if await _is_as_before(store, listed):
                await store.delete(lease)
                removed += 1
            else:
                await store.release(lease)
    return Removed(removed, await store.tidy())


async def _is_as_before(store: SqliteStore, listed: ConversationListing) -> bool:
    """Return whether a conversation is still archived and has had no activity since it was listed."""
    try:
        head = await store.head(listed.conversation_id)
    except Unreadable:  # compare with a new listing instead
        archived = await store.expired(archived_before=inf)
        return any(
            (one.conversation_id, one.summary) == (listed.conversation_id, listed.summary) for one in archived
        )
    return head.archived and head.summary == listed.summary
