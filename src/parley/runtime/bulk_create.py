"""Creating a conversation with many entries, page by page: other writers wait while one page is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from parley.conversation.log import Entry
from parley.ports.store import PAGE, Store, Summary
from parley.wire.ids import ConversationId

__all__ = ["bulk_create"]

PAGE_BYTES: Final = 8 * 1024**2
"""Bytes of entries in one page."""


async def bulk_create(
    store: Store,
    conversation_id: ConversationId,
    entries: Iterable[Entry],
    summary: Summary,
    *,
    archived: bool = False,
) -> None:
    """Create a conversation completely or not at all, also if the iterator raises, the caller is cancelled or the
    process is killed.

    Raises:
        StoreError: the store refuses, or a conversation with this id exists.
    """
    pages = _pages(entries)
    page, following = next(pages), next(pages, None)
    if following is None:
        await store.create(conversation_id, page, summary, archived=archived)
        return
    draft = await store.draft()
    try:
        await draft.add(page)
        while following is not None:
            await draft.add(following)
            following = next(pages, None)
        await draft.finish(conversation_id, summary, archived=archived)
    finally:
        await draft.drop()


def _pages(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    page: list[Entry] = []
    size = 0
    for entry in entries:
        if len(page) == PAGE or size > PAGE_BYTES:
            yield page
            page, size = [], 0
        page.append(entry)
        size += len(entry.body)
    if page:
        yield page
