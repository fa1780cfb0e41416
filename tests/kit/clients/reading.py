"""Functions that read the state, the positions and the texts of a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from kit.system.commands import TIMEOUT_SECONDS
from parley.client import Client, Stream, StreamEvent
from parley.client.turn_result import ends_turn
from parley.wire.events import AgentMessageDelta

__all__ = ["WAIT_SECONDS", "ReadsState", "positions", "until_end", "until_state", "written"]

WAIT_SECONDS: Final = 20.0
"""The time for which one read waits for new events."""


class ReadsState(Protocol):
    """A client that can read the state of a conversation."""

    async def read_state(self, conversation: str, *, after: int) -> tuple[int, str]:
        """Wait for events after a position. Return the last position and the state."""


async def until_state(client: ReadsState | Client, conversation: str, state: str) -> int:
    """Wait until a conversation is in a state; return the position of the last event that was read."""
    seq, found = 0, ""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while found != state:
            if isinstance(client, Client):
                page = await client.conversation(conversation).read(after=seq, wait_seconds=WAIT_SECONDS)
                seq, found = page.seq, page.state
            else:
                seq, found = await client.read_state(conversation, after=seq)
    return seq


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
