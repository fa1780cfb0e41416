"""Logs in memory: for tests, and for whoever wants nothing kept.

Nothing is encoded, copied or waited for; a store ends with its process.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from asyncio import Future
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from parley.conversation.log import Entry
from parley.conversation.records import QuestionAsked, record_type
from parley.errors import HomeLost, LeaseLost, OwnedElsewhere, StoreFailed, UnknownConversation
from parley.ports.store import (
    PAGE,
    ConversationListing,
    ConversationPage,
    Draft,
    Head,
    Lease,
    Owner,
    Query,
    Summary,
)
from parley.stores.search import SEARCHED, active_at, approval_id_in, contains_text, normalize_path
from parley.wire.ids import ApprovalId, ConversationId, Seq

__all__ = ["MemoryStore"]

_ASKED: Final = record_type(QuestionAsked)


class _Kept:
    """One conversation."""

    __slots__ = ("archived", "entries", "epoch", "owner", "summary")

    def __init__(self, entries: Sequence[Entry], summary: Summary, *, archived: bool) -> None:
        self.entries, self.summary, self.archived = list(entries), summary, archived
        self.epoch = 0
        self.owner: Owner | None = None


class _Draft:
    """The port `Draft`: entries that are no conversation yet."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._entries: list[Entry] = []

    async def add(self, entries: Sequence[Entry]) -> None:
        self._store._refuse_when_closed()
        self._entries += entries

    async def finish(self, conversation_id: ConversationId, summary: Summary, *, archived: bool = False) -> None:
        await self._store.create(conversation_id, self._entries, summary, archived=archived)

    async def drop(self) -> None:
        self._entries = []


class MemoryStore:
    """The port `Store`; what is appended is there at once."""

    def __init__(self) -> None:
        self._kept: dict[ConversationId, _Kept] = {}
        self._epochs = itertools.count(1)
        self._newest: float | None = None
        """When the conversation was active that is listed first."""
        self._closed = False

    async def create(
        self, conversation_id: ConversationId, entries: Sequence[Entry], summary: Summary, *, archived: bool = False
    ) -> None:
        self._refuse_when_closed()
        if conversation_id in self._kept:
            raise StoreFailed(f"conversation {conversation_id} is there already")
        self._kept[conversation_id] = _Kept(entries, self._dated(summary), archived=archived)

    async def draft(self) -> Draft:
        return _Draft(self)

    async def acquire(self, conversation_id: ConversationId, *, address: str, until: float | None = None) -> Lease:
        kept = self._named(conversation_id)
        if kept.owner is not None:
            raise OwnedElsewhere(pid=kept.owner.pid, address=kept.owner.address)
        kept.epoch = next(self._epochs)
        kept.owner = Owner(pid=os.getpid(), address=address, since=time.time())
        return Lease(conversation_id=conversation_id, epoch=kept.epoch, last=Seq(len(kept.entries)))

    async def release(self, lease: Lease) -> None:
        if (kept := self._held(lease)) is not None:
            kept.owner = None

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        done: Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._append(lease, entries, summary)
        except (LeaseLost, StoreFailed) as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def _append(self, lease: Lease, entries: Sequence[Entry], summary: Summary) -> None:
        self._refuse_when_closed()
        kept = self._held(lease)
        if kept is None:
            raise LeaseLost
        if entries and entries[0].seq <= len(kept.entries):
            raise LeaseLost
        if entries and entries[0].seq > len(kept.entries) + 1:
            raise StoreFailed("what comes before it was not written")
        kept.entries += entries
        kept.summary = self._dated(summary)

    def _dated(self, summary: Summary) -> Summary:
        at = active_at(summary, self._newest)
        self._newest = at if self._newest is None else max(self._newest, at)
        return replace(summary, updated_at=at, is_active=False)

    def watch(self, lost: Callable[[HomeLost], None]) -> None:
        """It is never lost."""

    async def check(self) -> None:
        self._refuse_when_closed()

    async def writable(self, *, until: float) -> None:
        self._refuse_when_closed()

    async def read(self, conversation_id: ConversationId, *, after: Seq) -> list[Entry]:
        return self._named(conversation_id).entries[after : after + PAGE]

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        return [one for one, end in ends.items() if one not in self._kept or len(self._kept[one].entries) > end]

    async def head(self, conversation_id: ConversationId) -> Head:
        kept = self._named(conversation_id)
        return Head(
            last=Seq(len(kept.entries)),
            epoch=kept.epoch,
            owner=kept.owner,
            summary=kept.summary,
            archived=kept.archived,
        )

    async def find(self, query: Query) -> ConversationPage:
        self._refuse_when_closed()
        text = None if query.text is None else query.text.casefold()
        cwd = None if query.cwd is None else normalize_path(query.cwd)
        found = [
            ConversationListing(
                conversation_id=conversation_id,
                summary=kept.summary,
                archived=kept.archived,
                owned=kept.owner is not None,
            )
            for conversation_id, kept in self._kept.items()
            if query.archived in (None, kept.archived)
            and (query.asked is None or _asks(kept, query.asked))
            and (cwd is None or cwd == normalize_path(kept.summary.cwd))
            and query.state in (None, kept.summary.state)
            and (text is None or _mentions(kept, text))
        ]
        found.sort(key=lambda listed: listed.cursor, reverse=True)
        rest = [listed for listed in found if query.after is None or listed.cursor < query.after]
        return ConversationPage(items=tuple(rest[: query.limit]), more=len(rest) > query.limit)

    async def asks_any(self, questions: Collection[ApprovalId]) -> bool:
        self._refuse_when_closed()
        return any(
            approval_id_in(entry.body) in questions
            for kept in self._kept.values()
            for entry in kept.entries
            if entry.type == _ASKED and not entry.is_event
        )

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        self._named(conversation_id).archived = archived

    async def delete(self, lease: Lease) -> None:
        self._refuse_when_closed()
        if self._held(lease) is None:
            raise LeaseLost
        del self._kept[lease.conversation_id]

    async def close(self) -> None:
        self._closed = True
        for kept in self._kept.values():
            kept.owner = None

    def _named(self, conversation_id: ConversationId) -> _Kept:
        self._refuse_when_closed()
        try:
            return self._kept[conversation_id]
        except KeyError:
            raise UnknownConversation(conversation_id) from None

    def _held(self, lease: Lease) -> _Kept | None:
        kept = self._kept.get(lease.conversation_id)
        return kept if kept is not None and kept.owner is not None and kept.epoch == lease.epoch else None

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")


def _asks(kept: _Kept, approval_id: ApprovalId) -> bool:
    name = approval_id.encode()
    return any(name in entry.encoded for entry in kept.entries if entry.type == _ASKED)


def _mentions(kept: _Kept, text: str) -> bool:
    return text in kept.summary.title.casefold() or any(
        contains_text(text, entry.body) for entry in kept.entries if entry.is_event and entry.type in SEARCHED
    )
