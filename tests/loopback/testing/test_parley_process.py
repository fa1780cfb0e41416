"""Server processes, as tests use them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from parley.client import Disconnected
from parley.testing import ParleyProcess, RawParley, ScriptedModel


async def test_a_server_is_there_with_its_client_and_its_model(
    parley_server: ParleyProcess, parley_model: ScriptedModel
) -> None:
    conversation = await parley_server.create()

    assert conversation.model == "scripted-model"
    assert parley_server.model is parley_model
    assert parley_server.client.initialize_result.protocol_version == "2025-11-25"
    assert [json.loads(frame)["id"] for frame in parley_server.frames] == [1, 2]


async def test_servers_differ_by_their_options(
    parley_process: Callable[..., Awaitable[ParleyProcess]],
) -> None:
    one = await parley_process(protocol_version="2025-06-18")
    other = await parley_process(api="responses")

    assert one.client.initialize_result.protocol_version == "2025-06-18"
    assert 'model_provider = "responses"' in (other.home / "config.toml").read_text()
    assert one.pid != other.pid


async def test_a_killed_server_is_gone_for_its_client(parley_server: ParleyProcess) -> None:
    parley_server.kill()

    assert await parley_server.exit_code() == -9
    with pytest.raises(Disconnected):
        await parley_server.client.ping()


async def test_every_message_is_checked_at_the_end(parley_model: ScriptedModel) -> None:
    server = ParleyProcess(parley_model)
    with pytest.raises(AssertionError, match="not what a server says"):
        async with server:
            server.frames.append(b'"not what a server says"')


async def test_the_wire_can_be_spoken_by_hand(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.write(b"nonsense\n")
        raw.send({"jsonrpc": "2.0", "id": "a", "method": "ping"})
        raw.send({"jsonrpc": "2.0", "id": "b", "method": "ping"})
        answer = await raw.expect(lambda message: message.get("id") == "b")
        raw.close_stdin()

        assert answer == {"jsonrpc": "2.0", "id": "b", "result": {}}
        assert await raw.exit_code() == 0
        assert len(raw.frames) == 2
        with pytest.raises(EOFError):
            await raw.read_message()
