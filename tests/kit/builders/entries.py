"""Small logs for tests of stores, and their summaries."""

from __future__ import annotations

from typing import Final

from parley.conversation.log import Entry
from parley.ports.store import StateName, Store, Summary
from parley.wire.events import AgentMessage, UserMessage, event_type
from parley.wire.ids import START, ConversationId, MessageId, Seq
from parley.wire.items import TextItem
from parley.wire.jsonrpc import encode

__all__ = ["FIRST", "OTHER", "answers", "asked", "everything_in", "said", "summary"]

FIRST: Final = ConversationId("11111111-1111-4111-8111-111111111111")
OTHER: Final = ConversationId("22222222-2222-4222-8222-222222222222")


def said(seq: int, text: str) -> Entry:
    """Build an entry with a message of the agent."""
    event = AgentMessage(message=text)
    return Entry(Seq(seq), float(seq), event_type(AgentMessage), True, encode(event))


def asked(seq: int, text: str) -> Entry:
    """Build an entry with a message of the user."""
    event = UserMessage(message_id=MessageId("m"), content=(TextItem(text=text),))
    return Entry(Seq(seq), float(seq), event_type(UserMessage), True, encode(event))


def answers(first: int, last: int) -> list[Entry]:
    return [said(seq, f"answer {seq}") for seq in range(first, last + 1)]


def summary(
    title: str = "A title", *, cwd: str = "/work", state: StateName = "idle", updated_at: float = 1.0
) -> Summary:
    return Summary(title=title, cwd=cwd, model="gpt-5", state=state, updated_at=updated_at)


async def everything_in(store: Store, conversation_id: ConversationId = FIRST) -> list[Entry]:
    """Read the whole log, page by page."""
    found: list[Entry] = []
    while page := await store.read(conversation_id, after=found[-1].seq if found else START):
        found += page
    return found
