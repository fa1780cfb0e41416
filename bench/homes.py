"""Writes homes that already contain conversations. The module writes through the store, as `parley import` does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from bench.servers import MODEL
from parley.conversation.log import Log, LogPayload
from parley.conversation.records import (
    MessageItem,
    ModelAsked,
    ModelSaid,
    SettingsChosen,
    TurnEnded,
    TurnStarted,
)
from parley.ports.store import PAGE, Store
from parley.runtime.bulk_create import bulk_create, pages_of
from parley.stores.sqlite.store import SqliteStore
from parley.wire.events import AgentMessage, TaskComplete, TaskStarted, UserMessage
from parley.wire.ids import ConversationId, EventId, MessageId
from parley.wire.items import TextItem

__all__ = ["fill", "keep_long", "keep_turns", "write_conversations"]


def keep_long(home: Path, *, messages: int) -> str:
    """Write one conversation with one turn, in which the agent sends `messages` messages. Return the id of the
    conversation."""
    (conversation_id,) = asyncio.run(_keep(home, conversations=1, messages=messages))
    return conversation_id


def keep_turns(home: Path, question: str, *, turns: int) -> str:
    """Write one conversation with `turns` short turns. Return the id of the conversation."""
    return asyncio.run(_keep_turns(home, question, turns=turns))


async def _keep_turns(home: Path, question: str, *, turns: int) -> ConversationId:
    conversation_id = ConversationId("00000000-0000-4000-8000-000000000000")
    payloads = [
        SettingsChosen(model=MODEL, cwd="/"),
        *chain.from_iterable(_turn(number + 1, question, ["Done"]) for number in range(turns)),
    ]
    store = SqliteStore(str(home))
    try:
        await bulk_create(store, conversation_id, pages_of(Log().append(payloads, at=time.time())))
    finally:
        await store.close()
    return conversation_id


def fill(home: Path, *, conversations: int) -> None:
    """Write `conversations` conversations with one short turn each."""
    asyncio.run(_keep(home, conversations=conversations, messages=1))


async def _keep(home: Path, *, conversations: int, messages: int) -> list[ConversationId]:
    store = SqliteStore(str(home))
    try:
        return await write_conversations(store, conversations, messages=messages)
    finally:
        await store.close()


async def write_conversations(
    store: Store, conversations: int, *, messages: int = 1, at_once: int = PAGE
) -> list[ConversationId]:
    """Write conversations with one turn each, `at_once` at the same time. Return their ids."""
    ids = [ConversationId(f"00000000-0000-4000-8000-{number:012}") for number in range(conversations)]
    for first in range(0, conversations, at_once):
        await asyncio.gather(*(_write(store, one, messages) for one in ids[first : first + at_once]))
    return ids


async def _write(store: Store, conversation_id: ConversationId, messages: int) -> None:
    log = Log()
    await bulk_create(store, conversation_id, pages_of(log.append(_conversation(messages), at=time.time())))


def _conversation(messages: int) -> list[LogPayload]:
    texts = [f"message {number}" for number in range(messages)]
    return [SettingsChosen(model=MODEL, cwd="/"), *_turn(1, "please say something", texts)]


def _turn(number: int, question: str, texts: Sequence[str]) -> list[LogPayload]:
    return [
        TurnStarted(event_id=EventId(str(number))),
        TaskStarted(),
        UserMessage(message_id=MessageId(str(number)), content=(TextItem(text=question),)),
        ModelAsked(),
        *(AgentMessage(message=text) for text in texts),
        *(ModelSaid(item=MessageItem(text=text)) for text in texts),
        TaskComplete(last_agent_message=texts[-1]),
        TurnEnded(why="done", message=texts[-1]),
    ]
