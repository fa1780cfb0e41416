"""Stores a conversation that already has entries, such as a fork or an import, either completely or not at all. The
conversation may have any length.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Final

from parley.conversation.log import Entry
from parley.conversation.projections import Projections
from parley.ports.store import CHECKPOINT_BYTES, PAGE, Checkpoint, Store, Summary
from parley.wire.ids import ConversationId

__all__ = ["bulk_create", "pages_of"]

PAGE_BYTES: Final = 8 * 1024**2
"""The size limit of a page of entries, in bytes. A page ends with the entry that makes the page larger than this
limit.
"""


async def bulk_create(
    store: Store,
    conversation_id: ConversationId,
    pages: AsyncIterable[Sequence[Entry]],
    summary: Summary | None = None,
    *,
    archived: bool = False,
) -> None:
    """Create a conversation with the entries of `pages`, either completely or not at all.

    No part of the conversation is stored if reading the pages fails, the caller is cancelled or the process is
    killed. If `summary` is None, a summary is computed from the entries. For a long conversation, a checkpoint is
    stored too, so that the conversation loads quickly. If `archived` is True, the new conversation is archived.

    Raises:
        StoreError: the conversation cannot be stored, or the id is already in use.
        ValueError: the entries contradict each other.
    """
    projections = Projections()
    folded = _folded(pages, projections)
    page, following = await anext(folded), await anext(folded, None)
    if following is None:
        summary = summary or Summary.of(projections.state)
        await store.create(conversation_id, page, summary, archived=archived)
        return
    draft = await store.draft()
    try:
        await draft.add(page)
        while following is not None:
            await draft.add(following)
            following = await anext(folded, None)
        summary = summary or Summary.of(projections.state)
        checkpoint = await asyncio.to_thread(_checkpoint, projections)
        await draft.finish(conversation_id, summary, archived=archived, checkpoint=checkpoint)
    finally:
        await draft.drop()


async def pages_of(entries: Iterable[Entry]) -> AsyncIterator[Sequence[Entry]]:
    """Yield entries in pages. A page has at most `PAGE` entries, and ends with the entry that makes the page larger
    than `PAGE_BYTES`.
    """
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


async def _folded(
    pages: AsyncIterable[Sequence[Entry]], projections: Projections
) -> AsyncIterator[Sequence[Entry]]:
    async for page in pages:
        projections.replay(page)
        projections.history.drop_texts()
        yield page
        await asyncio.sleep(0)  # let other tasks run, because a store in memory never waits


def _checkpoint(projections: Projections) -> Checkpoint | None:
    data = projections.checkpoint()
    if data is None or len(data) > CHECKPOINT_BYTES:
        return None
    return Checkpoint(seq=projections.position, data=data)
