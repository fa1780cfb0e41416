"""Reads the stored events of a conversation from the beginning, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from parley.client import Conversation, ReadEvent
from parley.client.conversation import EventPage
from parley.wire.ids import START, Seq

__all__ = ["all_events", "all_pages"]

PAGE: Final = 1000


async def all_pages(conversation: Conversation, *, times: bool = False) -> AsyncIterator[EventPage]:
    """Yield all pages of events, at least one. The last page contains the open items. If `times` is True, each
    event has the time at which it was stored.
    """
    after: Seq = START
    while True:
        page = await conversation.read(after=after, limit=PAGE, times=times)
        yield page
        if not page.events or page.seq <= after:
            return
        after = page.seq


async def all_events(conversation: Conversation, *, times: bool = False) -> AsyncIterator[ReadEvent]:
    async for page in all_pages(conversation, times=times):
        for event in page.events:
            yield event
