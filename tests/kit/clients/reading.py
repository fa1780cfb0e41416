"""What the Python client reads of a conversation: its state, positions and texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kit.system.commands import PATIENCE_SECONDS
from parley.client import Conversation, Stream, StreamEvent
from parley.client.turn_result import ends_turn
from parley.wire.events import AgentMessageDelta

__all__ = ["positions", "until_end", "until_state", "written"]


async def until_state(conversation: Conversation, state: str) -> None:
    """Wait until a conversation is in a state."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (page := await conversation.read()).state != state:
            await conversation.read(after=page.seq, wait_seconds=1)


async def until_end(stream: Stream) -> list[StreamEvent]:
    """Return the events up to the end of a turn."""
    seen = []
    async for event in stream.detailed():
        seen.append(event)
        if ends_turn(event.msg):
            break
    return seen


def positions(seen: Sequence[StreamEvent]) -> list[int]:
    return [event.meta.seq for event in seen if isinstance(event.meta.seq, int)]


def written(seen: Sequence[StreamEvent]) -> dict[object, str]:
    """Return the text of each item, from its deltas. Each delta must begin where the one before it ended."""
    texts: dict[object, str] = {}
    for event in seen:
        if isinstance(event.msg, AgentMessageDelta):
            text = texts.get(event.meta.item, "")
            assert event.meta.offset == len(text)
            texts[event.meta.item] = text + event.msg.delta
    return texts
