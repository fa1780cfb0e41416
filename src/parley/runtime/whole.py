"""A new conversation that is written whole or not at all, page by page: others wait while one is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from parley.conversation.log import Entry
from parley.errors import StoreError
from parley.ports.store import PAGE, Lease, Store, Summary
from parley.wire.ids import ConversationId

__all__ = ["write_whole"]

PAGE_BYTES: Final = 8 * 1024**2
"""How much is written in one go."""


async def write_whole(
    store: Store,
    conversation_id: ConversationId,
    entries: Iterable[Entry],
    summary: Summary,
    *,
    archived: bool = False,
) -> None:
    """All of it, or nothing. Until the last page it counts as idle: nobody shall see to a turn of which only the
    beginning is there.

    Raises:
        StoreError: the system refuses; it says so where what was begun could not be removed either.
    """
    pages = _pages(entries)
    page, following = next(pages), next(pages, None)
    unfinished = replace(summary, state="idle")
    await store.create(conversation_id, page, unfinished if following else summary, archived=archived)
    if following is None:
        return
    lease: Lease | None = None
    try:
        lease = await store.acquire(conversation_id, address="")
        while following is not None:
            page, following = following, next(pages, None)
            await store.append(lease, page, unfinished if following else summary)
    except BaseException as error:
        if (lease is None or not await _is_deleted(store, lease)) and isinstance(error, Exception):
            raise StoreError(f"{error}; the unfinished conversation {conversation_id} is left behind") from error
        raise
    await store.release(lease)


async def _is_deleted(store: Store, lease: Lease) -> bool:
    try:
        await store.delete(lease)
    except StoreError:
        return False
    return True


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
