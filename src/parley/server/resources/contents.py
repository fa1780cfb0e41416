"""Builds the contents of resources from the newest entries of the log, page by page, up to a size limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, assert_never

import msgspec
from msgspec import Raw

from parley.conversation.log import Entry
from parley.ports.store import Query
from parley.runtime.conversation import Conversation
from parley.runtime.registry import ConversationRegistry
from parley.server.access import require_conversation
from parley.server.attention import attention
from parley.server.context import Principal
from parley.server.encoders import encoded_event, hidden_events
from parley.server.hosts import Features
from parley.server.resources.transcript import section, transcript_head
from parley.server.resources.uris import Address, ResourceKind
from parley.server.times import iso
from parley.server.tools.list import summary_of
from parley.wire.events import TurnDiff, event_type
from parley.wire.ids import Seq
from parley.wire.resources import (
    AttentionDocument,
    ConversationDocument,
    ConversationsDocument,
    EventInDocument,
)

__all__ = ["ResourceReader"]

TRANSCRIPT_LENGTH: Final = 200_000
"""The maximum length of a transcript, in characters."""
DOCUMENT_BYTES: Final = 1024 * 1024
"""The maximum total size of the events in a JSON document, in bytes. It is also the maximum length of a diff, in
characters.
"""
LISTED: Final = 100
"""The maximum number of conversations in a resource that lists conversations."""
PAGE_ENTRIES: Final = 200
PAGE_BYTES: Final = 256 * 1024
"""The maximum size of a page of entries, in bytes. The limit is low because rendering a page must not block the
event loop.
"""

_DIFF: Final = event_type(TurnDiff)


class ResourceReader:
    """Reads resources for one request."""

    def __init__(self, conversations: ConversationRegistry, principal: Principal, features: Features) -> None:
        self._conversations, self._principal, self._features = conversations, principal, features

    async def text_of(self, address: Address) -> str:
        """Return the text of the resource at `address`.

        Raises:
            UnknownConversation: the conversation does not exist, or the principal is not allowed to see it.
            StoreError: the conversation cannot be read.
        """
        if address.kind is ResourceKind.ATTENTION:
            return await self._attention()
        if address.conversation is None:
            return await self._list()
        require_conversation(self._principal, address.conversation)
        conversation = await self._conversations.find(address.conversation)
        match address.kind:
            case ResourceKind.TRANSCRIPT:
                return await self._transcript(conversation)
            case ResourceKind.EVENTS:
                return await self._events(conversation)
            case ResourceKind.DIFF:
                return await _last_diff(conversation)
            case ResourceKind.ATTENTION | ResourceKind.CONVERSATIONS:
                raise AssertionError("the URI of a list contains no conversation")
            case _:
                assert_never(address.kind)

    async def _list(self) -> str:
        found = await self._conversations.page(
            Query(conversation=self._principal.conversation, viewer=self._principal.viewer, limit=LISTED)
        )
        document = ConversationsDocument(
            conversations=tuple(summary_of(one, self._features) for one in found.items), more=found.more
        )
        return msgspec.json.encode(document).decode()

    async def _attention(self) -> str:
        found = await attention(self._conversations, self._principal, limit=LISTED)
        document = AttentionDocument(conversations=found.items, more=found.rest is not None)
        return msgspec.json.encode(document).decode()

    async def _transcript(self, conversation: Conversation) -> str:
        sections: list[str] = []
        size, is_complete = 0, True
        async for entry in _backwards(conversation):
            if (shown := section(entry)) is None:
                continue
            size += len(shown)
            if size > TRANSCRIPT_LENGTH:
                is_complete = False
                break
            sections.append(shown)
        state = conversation.state
        facts = (
            f"conversation {conversation.id}",
            f"state {conversation.phase.value}",
            f"directory {state.cwd}",
            f"model {state.model}",
            f"updated {iso(state.updated_at)}",
        )
        head = transcript_head(title=state.title, facts=facts, is_complete=is_complete)
        return "\n\n".join((head, *reversed(sections))) + "\n"

    async def _events(self, conversation: Conversation) -> str:
        events: list[EventInDocument] = []
        hidden = hidden_events(self._features)
        size, is_complete = 0, True
        async for entry in _backwards(conversation):
            if not entry.is_event or entry.type in hidden:
                continue
            size += entry.size
            if size > DOCUMENT_BYTES:
                is_complete = False
                break
            events.append(EventInDocument(seq=entry.seq, msg=Raw(encoded_event(entry, self._features))))
        state = conversation.state
        document = ConversationDocument(
            conversation_id=conversation.id,
            title=state.title,
            cwd=state.cwd,
            model=state.model,
            state=conversation.phase.value,
            updated_at=iso(state.updated_at),
            seq=conversation.log.durable,
            is_complete=is_complete,
            events=tuple(reversed(events)),
        )
        return msgspec.json.encode(document).decode()


async def _last_diff(conversation: Conversation) -> str:
    async for entry in _backwards(conversation):
        if entry.is_event and entry.type == _DIFF:
            diff = msgspec.json.decode(entry.encoded, type=TurnDiff).unified_diff
            return diff if len(diff) <= DOCUMENT_BYTES else diff[: diff.rfind("\n", 0, DOCUMENT_BYTES) + 1]
    return ""


async def _backwards(conversation: Conversation) -> AsyncIterator[Entry]:
    """Yield the durable entries of the conversation in reverse order, the last entry first."""
    before = Seq(conversation.log.durable + 1)
    while page := await conversation.read_before(before, limit=PAGE_ENTRIES, max_bytes=PAGE_BYTES):
        for entry in reversed(page):
            yield entry
        before = page[0].seq
        await asyncio.sleep(0)  # let other tasks run, because reading a page in memory does not wait
