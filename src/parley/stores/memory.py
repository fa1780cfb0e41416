"""The store in memory, for `--ephemeral` and for tests. The conversations are lost when the process exits.

An append is fast, because this store does not encode or copy entries and does not wait for a disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import time
from asyncio import Future
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from parley.conversation.keys import key_of
from parley.conversation.log import Entry
from parley.conversation.records import ApprovalRequest, record_type
from parley.errors import HomeLost, LeaseLost, OwnedElsewhere, StoreFailed, UnknownConversation
from parley.ports.store import (
    CHECKPOINT_BYTES,
    CHECKPOINT_ENTRIES,
    PAGE,
    PAGE_BYTES,
    SEARCH_BYTES,
    SEARCH_ENTRIES,
    Checkpoint,
    ConversationListing,
    ConversationPage,
    Draft,
    Head,
    Lease,
    Owner,
    Query,
    SearchHit,
    SearchPage,
    SearchQuery,
    StoredSession,
    StoredSignIn,
    StoredToken,
    Summary,
    Viewer,
)
from parley.stores.search import (
    SEARCHED,
    active_at,
    approval_id_in,
    contains_text,
    match_in,
    normalize_path,
    unread_end,
)
from parley.wire.ids import ApprovalId, ConversationId, Seq

__all__ = ["MemoryStore"]

_APPROVAL_REQUEST: Final = record_type(ApprovalRequest)


class _Conversation:
    """The log and the metadata of one conversation."""

    __slots__ = ("archived", "checkpoint", "entries", "epoch", "keys", "marks", "owner", "read", "summary")

    def __init__(self, entries: Sequence[Entry], summary: Summary, *, archived: bool) -> None:
        self.entries: list[Entry] = []
        self.keys: dict[tuple[str, str], Seq] = {}
        """The position of the first entry with each pair of type and key (`conversation/keys.py`). Entries without
        a key are not included.
        """
        self.summary, self.archived = summary, archived
        self.checkpoint: Checkpoint | None = None
        self.epoch = 0
        self.owner: Owner | None = None
        self.read = Seq(len(entries))
        """The position up to which the conversation counts as read by every principal, even without a read mark."""
        self.marks: dict[str, Seq] = {}
        """Maps each principal to the position up to which the principal has read the conversation."""
        self.extend(entries)

    def is_unread(self, viewer: Viewer | None) -> bool:
        outcome = self.summary.outcome
        if viewer is None or outcome is None or outcome.at <= viewer.since:
            return False
        return outcome.seq > max(self.read, self.marks.get(viewer.identity, 0))

    def extend(self, entries: Sequence[Entry]) -> None:
        self.entries += entries
        for entry in entries:
            if (key := key_of(entry)) is not None:
                self.keys.setdefault((entry.type, key), entry.seq)


class _Draft:
    """An implementation of `Draft` in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._entries: list[Entry] = []

    async def add(self, entries: Sequence[Entry]) -> None:
        self._store._refuse_when_closed()
        self._entries += entries

    async def finish(
        self,
        conversation_id: ConversationId,
        summary: Summary,
        *,
        archived: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        await self._store.create(conversation_id, self._entries, summary, archived=archived)
        self._store._conversations[conversation_id].checkpoint = checkpoint

    async def drop(self) -> None:
        self._entries = []


class MemoryStore:
    """An implementation of `Store` in memory. An append completes immediately, and a lease is never lost."""

    def __init__(self) -> None:
        self._conversations: dict[ConversationId, _Conversation] = {}
        self._epochs = itertools.count(1)
        self._node = os.uname().nodename
        self._newest: float | None = None
        """The latest recorded time of activity in any conversation, in seconds since the epoch; None if there was
        no activity.
        """
        self._messages: list[tuple[ConversationId, Entry]] = []
        """The messages of all conversations, in the order in which they were stored."""
        self._tokens: dict[str, StoredToken] = {}
        self._sessions: dict[bytes, StoredSession] = {}
        self._sign_ins: dict[bytes, StoredSignIn] = {}
        self._closed = False

    async def create(
        self, conversation_id: ConversationId, entries: Sequence[Entry], summary: Summary, *, archived: bool = False
    ) -> None:
        self._refuse_when_closed()
        if conversation_id in self._conversations:
            raise StoreFailed(f"conversation {conversation_id} already exists")
        self._conversations[conversation_id] = _Conversation(entries, self._dated(summary), archived=archived)
        self._note_messages(conversation_id, entries)

    async def draft(self) -> Draft:
        return _Draft(self)

    async def acquire(
        self,
        conversation_id: ConversationId,
        *,
        address: str,
        until: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Lease:
        found = self._find(conversation_id)
        if (owner := found.owner) is not None:
            raise OwnedElsewhere(node=owner.node_unless(self._node), pid=owner.pid, address=owner.address)
        found.epoch = next(self._epochs)
        found.owner = Owner(node=self._node, pid=os.getpid(), address=address, since=time.time())
        return Lease(conversation_id=conversation_id, epoch=found.epoch, last=Seq(len(found.entries)))

    async def release(self, lease: Lease) -> None:
        if (held := self._held(lease)) is not None:
            held.owner = None

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
        held = self._held(lease)
        if held is None or (entries and entries[0].seq <= len(held.entries)):
            raise LeaseLost
        if entries and entries[0].seq > len(held.entries) + 1:
            raise StoreFailed("an earlier append was not written")
        held.extend(entries)
        held.summary = self._dated(summary)
        self._note_messages(lease.conversation_id, entries)

    def _note_messages(self, conversation_id: ConversationId, entries: Iterable[Entry]) -> None:
        self._messages += ((conversation_id, one) for one in entries if one.is_event and one.type in SEARCHED)

    def _dated(self, summary: Summary) -> Summary:
        at = active_at(summary, self._newest)
        self._newest = at if self._newest is None else max(self._newest, at)
        return replace(summary, updated_at=at, is_active=False)

    def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> Future[None]:
        done: Future[None] = asyncio.get_running_loop().create_future()
        held = self._held(lease)
        if len(checkpoint.data) > CHECKPOINT_BYTES:
            done.set_exception(ValueError(f"a checkpoint of {len(checkpoint.data)} bytes is too large"))
        elif self._closed:
            done.set_exception(StoreFailed("the store is closed"))
        elif held is None or checkpoint.seq > len(held.entries):
            done.set_exception(LeaseLost())
        else:
            saved = held.checkpoint
            if saved is None or checkpoint.seq >= saved.seq + CHECKPOINT_ENTRIES:
                held.checkpoint = checkpoint
            done.set_result(None)
        return done

    async def checkpoint(self, conversation_id: ConversationId) -> Checkpoint | None:
        return self._find(conversation_id).checkpoint

    def watch(self, lost: Callable[[HomeLost], None]) -> None:
        """Do nothing, because this store has no files."""

    async def check(self) -> None:
        self._refuse_when_closed()

    async def writable(self, *, until: float) -> None:
        self._refuse_when_closed()

    async def read(
        self,
        conversation_id: ConversationId,
        *,
        after: Seq,
        limit: int = PAGE,
        max_bytes: int = PAGE_BYTES,
        visible_only: bool = False,
    ) -> list[Entry]:
        entries = self._find(conversation_id).entries
        return _up_to_bytes(entries[after : after + min(limit, PAGE)], max_bytes)

    async def read_before(
        self, conversation_id: ConversationId, *, before: Seq, limit: int = PAGE, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        entries = self._find(conversation_id).entries
        end = max(0, min(before - 1, len(entries)))
        page = entries[max(0, end - min(limit, PAGE)) : end]
        return _up_to_bytes(reversed(page), max_bytes)[::-1]

    async def position_of(self, conversation_id: ConversationId, kind: str, key: str) -> Seq | None:
        return self._find(conversation_id).keys.get((kind, key))

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        found = self._conversations
        return [one for one, end in ends.items() if one not in found or len(found[one].entries) > end]

    async def head(self, conversation_id: ConversationId) -> Head:
        found = self._find(conversation_id)
        return Head(
            last=Seq(len(found.entries)),
            epoch=found.epoch,
            owner=found.owner,
            summary=found.summary,
            archived=found.archived,
        )

    async def find(self, query: Query) -> ConversationPage:
        self._refuse_when_closed()
        text = None if query.text is None else query.text.casefold()
        cwd = None if query.cwd is None else normalize_path(query.cwd)
        found = [
            ConversationListing(
                conversation_id=conversation_id,
                summary=one.summary,
                archived=one.archived,
                owned=one.owner is not None,
                unread=one.is_unread(query.viewer),
            )
            for conversation_id, one in self._conversations.items()
            if query.archived in (None, one.archived)
            and (query.asked is None or (_APPROVAL_REQUEST, query.asked) in one.keys)
            and (cwd is None or cwd == normalize_path(one.summary.cwd))
            and query.state in (None, one.summary.state)
            and query.conversation in (None, conversation_id)
        ]
        if query.unread is not None:
            found = [listed for listed in found if unread_end(listed) == query.unread]
        if text is not None:
            found = [listed for listed in found if await self._mentions(listed, text)]
        found.sort(key=lambda listed: listed.cursor, reverse=True)
        rest = [listed for listed in found if query.after is None or listed.cursor < query.after]
        return ConversationPage(items=tuple(rest[: query.limit]), more=len(rest) > query.limit)

    async def _mentions(self, listed: ConversationListing, text: str) -> bool:
        """Return whether the title or a message of the conversation `listed` contains `text`.

        The log is searched in pages, and other tasks can run after each page.
        """
        if text in listed.summary.title.casefold():
            return True
        entries = self._find(listed.conversation_id).entries
        for first in range(0, len(entries), PAGE):
            page = entries[first : first + PAGE]
            if any(contains_text(text, one.body) for one in page if one.is_event and one.type in SEARCHED):
                return True
            await asyncio.sleep(0)
        return False

    async def search(self, query: SearchQuery) -> SearchPage:
        self._refuse_when_closed()
        if query.conversation is not None:
            self._find(query.conversation)
        text, hits, size = query.text.casefold(), list[SearchHit](), 0
        end = len(self._messages) if query.before is None else min(query.before, len(self._messages))
        position = first = max(0, end - SEARCH_ENTRIES)
        for position in range(end - 1, first - 1, -1):
            conversation_id, entry = self._messages[position]
            kept = self._conversations[conversation_id]
            if conversation_id != query.conversation if query.conversation is not None else kept.archived:
                continue
            if (found := match_in(text, entry.body)) is not None:
                hits.append(
                    SearchHit(
                        conversation_id=conversation_id,
                        title=kept.summary.title,
                        seq=entry.seq,
                        at=entry.at,
                        type=entry.type,
                        snippet=found.snippet,
                        start=found.start,
                        end=found.end,
                    )
                )
            size += entry.size
            if len(hits) == query.limit or size > SEARCH_BYTES:
                break
        return SearchPage(hits=tuple(hits), next=position or None)

    async def has_approvals(self, approval_ids: Collection[ApprovalId]) -> bool:
        self._refuse_when_closed()
        return any(
            approval_id_in(entry.body) in approval_ids
            for one in self._conversations.values()
            for entry in one.entries
            if entry.type == _APPROVAL_REQUEST and not entry.is_event
        )

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        self._find(conversation_id).archived = archived

    async def mark_read(self, conversation_id: ConversationId, reader: str, seq: Seq) -> bool:
        marks = self._find(conversation_id).marks
        if seq <= marks.get(reader, 0):
            return False
        marks[reader] = seq
        return True

    async def delete(self, lease: Lease, *, leave_entries: bool = False) -> None:
        self._refuse_when_closed()
        if self._held(lease) is None:
            raise LeaseLost
        del self._conversations[lease.conversation_id]
        self._messages = [one for one in self._messages if one[0] != lease.conversation_id]

    async def add_token(self, token: StoredToken) -> bool:
        self._refuse_when_closed()
        return self._tokens.setdefault(token.name, token) is token

    async def tokens(self) -> list[StoredToken]:
        self._refuse_when_closed()
        return [self._tokens[name] for name in sorted(self._tokens)]

    async def remove_token(self, name: str) -> bool:
        self._refuse_when_closed()
        token = self._tokens.pop(name, None)
        if token is not None:
            for one in self._conversations.values():
                one.marks.pop(token.token_id, None)
            self._sign_ins = {key: one for key, one in self._sign_ins.items() if one.token != token.digest}
        return token is not None

    async def note_tokens_used(self, used: Mapping[bytes, float]) -> None:
        self._refuse_when_closed()
        for name, token in self._tokens.items():
            if token.digest in used:
                self._tokens[name] = replace(token, used_at=used[token.digest])

    async def save_session(self, session: StoredSession, *, replacing: bytes | None) -> bool:
        self._refuse_when_closed()
        found = self._sessions.get(session.digest)
        if (None if found is None else found.data) not in (replacing, session.data):
            return False
        self._sessions[session.digest] = session
        return True

    async def session(self, digest: bytes) -> StoredSession | None:
        self._refuse_when_closed()
        return self._sessions.get(digest)

    async def session_revisions(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        self._refuse_when_closed()
        found = (self._sessions.get(one) for one in digests)
        return {one.digest: hashlib.sha256(one.data).digest() for one in found if one is not None}

    async def note_sessions_used(self, used: Mapping[bytes, float]) -> None:
        self._refuse_when_closed()
        for digest, at in used.items():
            if (found := self._sessions.get(digest)) is not None:
                self._sessions[digest] = replace(found, used_at=max(found.used_at, at))

    async def remove_sessions(self, digests: Collection[bytes]) -> None:
        self._refuse_when_closed()
        for digest in digests:
            self._sessions.pop(digest, None)

    async def remove_unused_sessions(self, *, since: float) -> None:
        self._refuse_when_closed()
        self._sessions = {digest: one for digest, one in self._sessions.items() if one.used_at >= since}

    async def add_sign_in(self, sign_in: StoredSignIn) -> None:
        self._refuse_when_closed()
        self._sign_ins.setdefault(sign_in.digest, sign_in)

    async def subscribe_sign_in(self, digest: bytes, push: bytes | None) -> bool:
        self._refuse_when_closed()
        if (found := self._sign_ins.get(digest)) is None:
            return False
        self._sign_ins[digest] = replace(found, push=push)
        return True

    async def sign_in(self, digest: bytes) -> StoredSignIn | None:
        self._refuse_when_closed()
        return self._sign_ins.get(digest)

    async def sign_ins(self) -> list[StoredSignIn]:
        self._refuse_when_closed()
        return [one for _, one in sorted(self._sign_ins.items())]

    async def note_sign_ins_used(self, used: Mapping[bytes, float]) -> None:
        self._refuse_when_closed()
        for digest, at in used.items():
            if (found := self._sign_ins.get(digest)) is not None:
                self._sign_ins[digest] = replace(found, used_at=at)

    async def remove_sign_ins(self, digests: Collection[bytes]) -> int:
        self._refuse_when_closed()
        return sum(self._sign_ins.pop(digest, None) is not None for digest in set(digests))

    async def close(self) -> None:
        self._closed = True
        for one in self._conversations.values():
            one.owner = None

    def _find(self, conversation_id: ConversationId) -> _Conversation:
        self._refuse_when_closed()
        try:
            return self._conversations[conversation_id]
        except KeyError:
            raise UnknownConversation(conversation_id) from None

    def _held(self, lease: Lease) -> _Conversation | None:
        """Return the conversation of the given lease; None if the lease was released or the conversation was
        deleted.
        """
        found = self._conversations.get(lease.conversation_id)
        return found if found is not None and found.owner is not None and found.epoch == lease.epoch else None

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")


def _up_to_bytes(entries: Iterable[Entry], max_bytes: int) -> list[Entry]:
    """Return the leading entries of `entries`, up to and including the entry at which their total size exceeds
    `max_bytes`. Return all entries if their total size does not exceed `max_bytes`.
    """
    found: list[Entry] = []
    size = 0
    for entry in entries:
        found.append(entry)
        size += len(entry.body)
        if size > max_bytes:
            break
    return found
