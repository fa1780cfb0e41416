"""The CPU time of an idle server with many and with few open streams, measured on a real process."""

from __future__ import annotations

import resource
import time

import pytest

from kit.clients.wire_client import WireClient, speaking
from kit.system.cpu import precise_cpu_seconds
from parley.testing import ScriptedModel
from parley.testing.home import MODEL
from parley.wire.mcp import PLAIN_VERSION

AT_ONCE = 500
IDLE_SECONDS = 4


async def stream_many(client: WireClient, number: int) -> list[str]:
    """Create this many conversations and open a stream of each."""
    found: list[str] = []
    for begin in range(0, number, AT_ONCE):
        with client.at_once():
            for _ in range(begin, min(begin + AT_ONCE, number)):
                client.call("conversationCreate", prompt="", model=MODEL, cwd=str(client.work))
        created = await client.take(min(AT_ONCE, number - begin))
        some = [one["result"]["structuredContent"]["conversation_id"] for one in created]
        with client.at_once():
            for one in some:
                client.stream(one)
        await client.take(2 * len(some))
        found += some
    return found


async def share_while_idle(client: WireClient, conversation: str, seconds: int) -> float:
    """Return the share of a processor that the server uses while a client waits."""
    before = began = 0.0
    waits = [min(10, seconds)] * max(1, seconds // 10)
    for wait in (1, *waits):  # earlier work may still end in the first second
        page = client.call("conversationRead", conversation_id=conversation, after=1, wait_seconds=wait)
        assert (await client.value_of(page))["events"] == []
        if not began:
            before, began = precise_cpu_seconds(client.raw.pid), time.monotonic()
    return (precise_cpu_seconds(client.raw.pid) - before) / (time.monotonic() - began)


@pytest.mark.waits
async def test_300_idle_streams_cost_less_than_one_percent_of_a_processor(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversations = await stream_many(client, 300)

        assert await share_while_idle(client, conversations[0], IDLE_SECONDS) < 0.01


@pytest.mark.long
@pytest.mark.promises("keeping.idle")
@pytest.mark.parametrize(("streams", "share"), [(3, 0.003), (5_000, 0.02)])
async def test_idle_streams_cost_next_to_nothing(parley_model: ScriptedModel, streams: int, share: float) -> None:
    async with speaking(parley_model) as client:
        conversations = await stream_many(client, streams)

        assert await share_while_idle(client, conversations[0], 40) < share


@pytest.mark.long
@pytest.mark.promises("lifecycle.end-of-stdin")
async def test_a_server_with_5000_streams_ends_within_two_seconds(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=PLAIN_VERSION) as client:
        conversations = await stream_many(client, 5_000)
        before = precise_cpu_seconds(client.raw.pid)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        client.raw.close_stdin()
        assert await client.raw.exit_code() == 0
        took = time.monotonic() - began
        all_of_it = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = all_of_it.ru_utime + all_of_it.ru_stime - ended.ru_utime - ended.ru_stime - before
        received = await client.take(len(conversations))

        assert {one["params"]["reason"] for one in received} == {"Server is shutting down"}
        assert took < 2
        assert used < 1
