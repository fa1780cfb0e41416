"""Conversations with an orphaned turn, which one `Life` leaves to the next."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from kit.servers.lives import Life
from parley.conversation.state import Phase
from parley.runtime.conversation import Conversation
from parley.wire.events import Settlement
from parley.wire.ids import ApprovalId
from parley.wire.principals import LOCAL

__all__ = ["last", "leave_asking", "leave_running", "open_approval_id", "pass_time", "settle", "types"]


def types(conversation: Conversation, *wanted: str) -> list[str]:
    """Return the types of the entries in a log that are among these, in order."""
    return [entry.type for entry in conversation.log.entries if entry.type in wanted]


def last(conversation: Conversation, kind: str) -> dict[str, Any]:
    """Return the last entry of a type."""
    found = [entry.encoded for entry in conversation.log.entries if entry.type == kind]
    decoded: dict[str, Any] = msgspec.json.decode(found[-1])
    return decoded


def open_approval_id(conversation: Conversation) -> ApprovalId:
    assert conversation.approvals.open is not None
    return conversation.approvals.open.approval_id


async def settle(conversation: Conversation, decision: Settlement, *, reason: str | None = None) -> None:
    await conversation.approvals.answer(
        open_approval_id(conversation), decision, by="tool", principal=LOCAL, reason=reason
    )


async def leave_asking(life: Life, what: str = "run a") -> Conversation:
    """Create a conversation whose turn waits for an approval."""
    conversation = await life.create()
    await life.send(conversation, what)
    await life.until(conversation, Phase.ASKING)
    return conversation


async def leave_running(life: Life) -> Conversation:
    """Create a conversation with a running command."""
    conversation = await leave_asking(life, "run slow")
    await settle(conversation, "approved")
    await life.slow.wait()
    return conversation


async def pass_time(life: Life, seconds: int) -> None:
    """Advance the clock second by second, so that polling tasks run."""
    for _ in range(seconds):
        life.clock.passes(1)
        for _ in range(3):
            await asyncio.sleep(0)
