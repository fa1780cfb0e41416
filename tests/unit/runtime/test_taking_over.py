"""The first process that needs a conversation with an orphaned turn takes over the turn, for any reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.state import Phase
from parley.errors import UnknownConversation
from parley.runtime.conversation import Conversation
from parley.wire.ids import ApprovalId
from parley.wire.principals import LOCAL


async def left_asking(first: Life, second: Life) -> tuple[Conversation, ApprovalId]:
    """Create an orphaned turn that waits for an approval.

    `second` has the conversation in memory and has not noticed.
    """
    there = await first.create()
    here = await second.find(there.id)
    await first.send(there, "run a")
    await first.until(there, Phase.ASKING)
    await here._log.load()
    first.killed(there)
    assert here.approvals.open is not None
    return here, here.approvals.open.approval_id


async def test_an_answer_takes_the_turn_over_and_settles_the_approval(tmp_path: Path) -> None:
    store = SlowStore()
    async with Life(str(tmp_path), store) as first, Life(str(tmp_path), store) as second:
        here, approval = await left_asking(first, second)
        await here.approvals.answer(approval, "approved", by="client", principal=LOCAL)
        await second.until(here, Phase.IDLE)

    assert (first.ran, second.ran) == ([], ["a"])


async def test_answers_a_message_and_an_interrupt_at_once_leave_one_end(tmp_path: Path) -> None:
    store = SlowStore()
    async with Life(str(tmp_path), store) as first, Life(str(tmp_path), store) as second:
        here, approval = await left_asking(first, second)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await asyncio.gather(
                *(here.approvals.answer(approval, "approved", by="client", principal=LOCAL) for _ in range(3)),
                second.send(here, "say Hello"),
                here.interrupt_unfinished(principal=LOCAL),
                return_exceptions=True,
            )
        await second.until(here, Phase.IDLE)
        kinds = [entry.type for entry in here.log.entries]

    assert kinds.count("question_settled") == 1
    assert kinds.count("turn_ended") == kinds.count("turn_started")
    assert len(second.ran) <= 1


async def test_a_waiter_gets_an_error_when_another_process_deletes_the_conversation(tmp_path: Path) -> None:
    store = SlowStore()
    async with Life(str(tmp_path), store) as first, Life(str(tmp_path), store) as second:
        here = await second.find((await first.create()).id)
        waiting = asyncio.create_task(here.wait_beyond(here.log.durable))
        await asyncio.sleep(0)
        await first.conversations.delete(here.id)
        second.conversations.changed(here.id)
        with pytest.raises(UnknownConversation):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await waiting
