"""Answers to approvals whose turn is running in another process."""

from __future__ import annotations

import asyncio

import pytest

from kit.servers.orphaned_turns import pass_time
from kit.servers.remote_owner import FollowedTurn
from kit.system.commands import TIMEOUT_SECONDS
from parley.wire.peers import NOT_WRITTEN
from parley.wire.principals import LOCAL


async def begun() -> None:
    """Run the event loop until all new tasks are waiting."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_answer_that_the_owner_cannot_store_is_repeated_with_the_same_id(home: str) -> None:
    async with FollowedTurn(home) as two:
        answering = two.here.approvals.answer_with_retry(two.approval, "approved", by="client", principal=LOCAL)
        await two.owner.asked(1)
        two.owner.refuses(NOT_WRITTEN, "No space left on device")
        await begun()
        assert two.here.approvals.is_answering
        assert not two.here.is_evictable
        await pass_time(two.second, 2)
        await two.owner.asked(2)
        two.owner.answers()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await answering
        assert not two.here.approvals.is_answering

    first, second = two.owner.answer_requests
    assert first == second


async def test_an_answer_to_an_unresponsive_owner_is_repeated(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FollowedTurn(home) as two:
        with monkeypatch.context() as short:
            short.setattr("parley.runtime.conversation_approvals.CALL_SECONDS", 0.0)
            answering = two.here.approvals.answer_with_retry(two.approval, "approved", by="client", principal=LOCAL)
            await begun()
        assert two.owner.passed_on == []
        await pass_time(two.second, 2)
        await two.owner.asked(1)
        two.owner.answers()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await answering
