"""Input that cannot be stored is never sent to the model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.history import UserItem
from parley.conversation.state import Phase
from parley.errors import StoreFailed
from parley.wire.items import text_of
from parley.wire.principals import LOCAL

TICKS = 30
"""A number of event loop iterations that is larger than a model request needs."""


async def test_the_model_is_not_asked_before_its_input_is_durable(tmp_path: Path) -> None:
    store = SlowStore()
    async with Life(str(tmp_path), store) as life, asyncio.timeout(TIMEOUT_SECONDS):
        conversation = await life.create()
        await life.send(conversation, "run slow")
        await life.until(conversation, Phase.ASKING)
        assert conversation.approvals.open is not None
        await conversation.approvals.answer(
            conversation.approvals.open.approval_id, "approved", by="tool", principal=LOCAL
        )
        await life.slow.wait()
        store.slow = True
        life.go_on.set()
        await store.until_waiting()
        joining = asyncio.create_task(life.send(conversation, "say Never"))
        await store.until_waiting(2)
        await store.write()
        for _ in range(TICKS):
            await asyncio.sleep(0)
        store.slow = False
        while store.waiting:
            await store.fail()
        with pytest.raises(StoreFailed):
            await joining
        await life.until(conversation, Phase.IDLE)

        heard = [item for request in life.requests for item in request.history if isinstance(item, UserItem)]
        assert {text_of(item.content) for item in heard} == {"run slow"}
