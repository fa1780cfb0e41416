"""The report about tool servers that cannot be started, including the case that the report cannot be stored."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from kit.servers.lives import Life
from kit.servers.slow_store import DISK_FULL, SlowStore
from parley.config.types import Settings
from parley.conversation.state import Phase
from parley.runtime.conversation import Conversation
from parley.wire.events import ErrorEvent, event_type

FAILURE: Final = "MCP client for `weather` failed to start: no such file"


class LifeWithBrokenServer(Life):
    async def start_servers(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        return (("weather", FAILURE),)


def reports(conversation: Conversation) -> list[str]:
    entries = [entry for entry in conversation.log.entries if entry.type == event_type(ErrorEvent)]
    return [msgspec.json.decode(entry.encoded)["message"] for entry in entries]


async def test_a_failure_is_reported_once(home: str) -> None:
    async with LifeWithBrokenServer(home, SlowStore()) as life:
        conversation = await life.create(**{"mcp_servers.weather.command": "weather"})
        conversation.start_tool_servers()
        await conversation.tool_servers_started()
        assert reports(conversation) == [FAILURE]

        await life.send(conversation, "say Hello")
        await life.until(conversation, Phase.IDLE)
        assert reports(conversation) == [FAILURE]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_failure_that_could_not_be_stored_is_reported_when_the_next_turn_begins(
    home: str, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowStore()
    async with LifeWithBrokenServer(home, store) as life:
        conversation = await life.create(**{"mcp_servers.weather.command": "weather"})
        store.slow = True
        conversation.start_tool_servers()
        await store.until_waiting()
        if not waits:
            conversation.stop_waiting_for_tool_servers()
        await store.fail()
        await conversation.tool_servers_started()
        store.slow = False
        assert reports(conversation) == []

        await life.send(conversation, "say Hello")
        await life.until(conversation, Phase.IDLE)
        assert reports(conversation) == [FAILURE]
    logged = [one for one in caplog.messages if "tool server is reported when the next turn begins" in one]
    assert [DISK_FULL in one for one in logged] == [True] * waits


async def test_a_failure_that_is_stored_after_the_wait_was_stopped_is_reported_once(home: str) -> None:
    store = SlowStore()
    async with LifeWithBrokenServer(home, store) as life:
        conversation = await life.create(**{"mcp_servers.weather.command": "weather"})
        store.slow = True
        conversation.start_tool_servers()
        await store.until_waiting()
        conversation.stop_waiting_for_tool_servers()
        await conversation.tool_servers_started()
        await store.write()
        store.slow = False

        await life.send(conversation, "say Hello")
        await life.until(conversation, Phase.IDLE)
        assert reports(conversation) == [FAILURE]
