"""What a home keeps of its conversations, and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from kit.messages import initial_state, remains
from kit.speaking import Speaker, speaking
from parley.testing import ScriptedModel

SECRET: Final = "a-header-that-nobody-writes-down"


async def status(client: Speaker, conversation: str) -> Any:
    return await client.value_of(client.call("conversationStatus", conversation_id=conversation))


async def listed(client: Speaker) -> list[str]:
    found = await client.value_of(client.call("conversationsList"))
    return [one["conversation_id"] for one in found["conversations"]]


async def spoken(client: Speaker, conversation: str, text: str) -> None:
    await client.say(conversation, text)
    await client.over(conversation)


def words_sent(model: ScriptedModel) -> list[str]:
    """What the last request to the model had of the user and of the agent."""
    messages = [one for one in model.requests[-1].body["messages"] if one["role"] in ("user", "assistant")]
    return [one["content"] for one in messages if not one["content"].startswith("<")]


async def test_an_ephemeral_server_writes_nothing_and_nobody_else_knows_its_conversations(
    scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with speaking(scripted_model, home=home, arguments=["--ephemeral"]) as client:
        conversation = await client.create()
        await spoken(client, conversation, "go")
        left = [path.name for path in home.rglob("*")]
        async with speaking(scripted_model, home=home) as other:
            known_to_others = await listed(other)
        _, snapshot = await client.open_stream(conversation)

        assert (left, known_to_others, await listed(client)) == (["config.toml"], [], [conversation])
        assert snapshot == initial_state(conversation, *remains("chat", "Done"))


@pytest.mark.promises("keeping.loaded")
async def test_nobody_notices_that_a_conversation_has_left_memory(scripted_model: ScriptedModel) -> None:
    async with speaking(scripted_model, config="[store]\nidle_seconds = 0\n") as client:
        conversation, other = await client.create(), await client.create()
        await spoken(client, conversation, "first")
        before = await status(client, conversation)
        # Whoever is idle leaves after a second, which has passed in the server when this is answered.
        await client.value_of(client.call("conversationRead", conversation_id=other, after=1, wait_seconds=1.5))
        after = await status(client, conversation)
        _, snapshot = await client.open_stream(conversation)
        await client.say(conversation, "second")
        await client.until_method("task_complete")

        assert after == before
        assert snapshot == initial_state(conversation, *remains("chat", "Done"))
        assert words_sent(scripted_model) == ["first", "Done", "second"]


@pytest.mark.promises("keeping.settings")
async def test_settings_that_were_asked_for_are_kept_and_the_values_of_headers_are_not(
    scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    asked = {
        "model_providers.chat.http_headers": {"x-team": SECRET},
        "model_providers.chat.query_params": {"v": "7"},
    }
    async with speaking(scripted_model, home=home) as client:
        conversation = await client.create(model="another-model", config=asked)
        await spoken(client, conversation, "first")
    async with speaking(scripted_model, home=home) as client:
        await spoken(client, conversation, "second")
        files = [path for path in home.rglob("*") if path.is_file()]
        found = [path.name for path in files if SECRET.encode() in path.read_bytes()]

    assert [one.headers.get("x-team") for one in scripted_model.requests] == [SECRET, None]
    assert [(one.body["model"], one.path.endswith("?v=7")) for one in scripted_model.requests] == [
        ("another-model", True)
    ] * 2
    assert ("parley.db" in [path.name for path in files], found) == (True, [])
