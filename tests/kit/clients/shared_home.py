"""Clients of several processes that share a home and a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kit.clients.approving import ASKS_FIRST
from parley.client import Approval, Conversation, Stream
from parley.client.turn_result import Event, ends_turn
from parley.testing import ParleyProcess
from parley.wire.events import AgentMessageDelta, Decision, ExecCommandOutputDelta, UserMessage
from parley.wire.ids import ItemId, Seq
from parley.wire.tools import Owner

__all__ = [
    "ASKS",
    "DelayedAnswer",
    "ReceivedEvent",
    "Start",
    "events_until",
    "is_",
    "log_of",
    "owner_of",
    "said",
    "shared",
    "stored_events",
    "turn_in",
]

ASKS: Any = ASKS_FIRST
"""Settings that require approvals, for typed calls."""

Start = Callable[..., Awaitable[ParleyProcess]]


async def shared(start: Start) -> tuple[ParleyProcess, ParleyProcess, Conversation, Conversation]:
    """Create a conversation that a client of each of two processes uses."""
    one, two = await start(), await start()
    here = await one.create()
    return one, two, here, two.client.conversation(here.id)


class DelayedAnswer:
    """A client that is asked for approvals, and answers when the test calls it."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.taken_back = asyncio.Event()
        self._asked = asyncio.Event()
        self._answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()

    async def __call__(self, approval: Approval) -> None:
        assert approval.command is not None
        self.commands.append(approval.command)
        self._asked.set()
        try:
            decision = await asyncio.shield(self._answer)
        except asyncio.CancelledError:
            self.taken_back.set()
            raise
        await (approval.approve() if decision == "approved" else approval.deny())

    async def asked(self) -> None:
        await self._asked.wait()

    def answer(self, decision: Decision) -> None:
        self._answer.set_result(decision)


class ReceivedEvent(NamedTuple):
    """The events that a client received, with joined deltas, and the position of its stream."""

    msg: Event
    seq: Seq | UnsetType
    item: ItemId | UnsetType
    offset: int | UnsetType


async def turn_in(stream: Stream) -> list[ReceivedEvent]:
    """Return all events up to the end of a turn, with consecutive deltas joined.

    Readers may get a text in different pieces. No other event may come between the pieces of a text.
    """
    shown: list[ReceivedEvent] = []
    async for seen in stream.detailed():
        assert seen.meta is not None
        one = ReceivedEvent(seen.msg, seen.meta.seq, seen.meta.item, seen.meta.offset)
        if shown and isinstance(one.item, str) and one.item == shown[-1].item:
            shown[-1] = _joined(shown[-1], one)
        else:
            shown.append(one)
        if ends_turn(seen.msg):
            return shown
    raise AssertionError("the stream has ended")


def _joined(first: ReceivedEvent, second: ReceivedEvent) -> ReceivedEvent:
    msg: Event
    match first.msg, second.msg:
        case AgentMessageDelta(delta=before), AgentMessageDelta(delta=after):
            length, msg = len(before), AgentMessageDelta(delta=before + after)
        case ExecCommandOutputDelta(chunk=data), ExecCommandOutputDelta(chunk=more) as last:
            length, msg = len(data), replace(last, chunk=data + more)
        case _:
            raise AssertionError(f"{first} and {second} are of one item")
    assert isinstance(first.offset, int)
    assert second.offset == first.offset + length
    return first._replace(msg=msg)


def stored_events(shown: list[ReceivedEvent]) -> list[ReceivedEvent]:
    """Return the stored events: a client that follows later does not see the deltas."""
    return [one for one in shown if one.item is UNSET]


async def events_until(stream: Stream, wanted: Callable[[Event], bool]) -> list[Event]:
    events: list[Event] = []
    async for event in stream:
        events.append(event)
        if wanted(event):
            return events
    raise AssertionError("the stream has ended")


def is_(kind: type) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, kind)


def said(events: list[Event]) -> list[str]:
    return [item.text for event in events if isinstance(event, UserMessage) for item in event.content]  # type: ignore[union-attr] # texts


async def owner_of(conversation: Conversation) -> int | None:
    owner = (await conversation.status()).owner
    return owner.pid if isinstance(owner, Owner) else None


async def log_of(conversation: Conversation) -> list[Event]:
    return [event.msg for event in (await conversation.read(limit=1000)).events]
