"""Conversations and settings that the next process loads, and data that it cannot load."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kit.builders.events import text
from kit.servers.lives import Life
from kit.servers.orphaned_turns import leave_asking, types
from kit.servers.slow_store import SlowStore
from parley.config.types import SettingsOverrides
from parley.conversation.history import UserItem
from parley.conversation.state import Phase
from parley.errors import StoreFailed, UnknownConversation
from parley.wire.ids import START, ConversationId


def write_config(home: str, words: str) -> None:
    Path(home, "config.toml").write_text(words, encoding="utf-8")


async def test_a_conversation_is_found_as_it_was_left_and_continues(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await first.create()
        await first.send(left, "say Hello", message_id="a")
        await first.until(left, Phase.IDLE)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        assert found.log.entries == left.log.entries
        assert await second.find(left.id) is found

        await second.send(found, "say And?")
        await second.until(found, Phase.IDLE)

        sent = [item.content for item in second.requests[0].history if isinstance(item, UserItem)]
        assert sent == [(text("say Hello"),), (text("say And?"),)]
        assert [entry.seq for entry in found.log.entries] == list(range(1, found.log.last + 1))
        assert types(found, "turn_started", "turn_ended") == ["turn_started", "turn_ended"] * 2


async def test_a_missing_conversation_is_looked_up_once_at_a_time(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        left = await leave_asking(life)
    async with Life(home, store) as life:
        found = await asyncio.gather(*(life.find(left.id) for _ in range(5)))
        assert all(one is found[0] for one in found)
        with pytest.raises(UnknownConversation):
            await life.find(ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8"))


async def test_requested_settings_override_the_files_of_the_process_that_runs_the_turn(
    home: str,
) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await first.create(model_reasoning_effort="low")
        await first.send(left, "say Hello", wanted=SettingsOverrides(model="asked-for"))
        await first.until(left, Phase.IDLE)
    write_config(home, 'model = "by-file"\nmodel_reasoning_summary = "detailed"\n')
    async with Life(home, store) as second:
        found = await second.find(left.id)
        await second.send(found, "say Hello")
        await second.until(found, Phase.IDLE)

        settings = second.settings[-1]
        assert (settings.model, settings.model_reasoning_effort) == ("asked-for", "low")
        assert settings.model_reasoning_summary == "detailed"


async def test_secrets_stay_in_the_process_that_received_them_also_after_a_failed_write(home: str) -> None:
    store = SlowStore()
    provider = {"name": "P", "base_url": "http://localhost", "http_headers": {"Authorization": "Bearer hidden"}}
    async with Life(home, store) as first:
        left = await first.create(model_provider="p", model_providers={"p": provider})
        store.slow = True
        failing = asyncio.create_task(left.rename("Foxes"))
        await store.until_waiting()
        await store.fail()
        with pytest.raises(StoreFailed):
            await failing
        store.slow = False
        await first.send(left, "say Hello")
        await first.until(left, Phase.IDLE)

        assert first.settings[-1].provider.http_headers == {"Authorization": "Bearer hidden"}
    assert not any(b"hidden" in entry.body for entry in await store.read(left.id, after=START))
    async with Life(home, store) as second:
        found = await second.find(left.id)
        assert (found.settings.provider.id, found.settings.provider.http_headers) == ("p", {})
