"""Pipes in place of files that the server reads: the server does not wait for a writer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.clients.wire_client import speaking
from kit.servers.resident_process import outcome_of, start_parley
from parley.app.discovery import read_description
from parley.testing import ScriptedModel

pytestmark = pytest.mark.usefixtures("servers_in_process")


@pytest.mark.promises("framing.never-blocked")
async def test_a_pipe_as_a_script_fails_the_turn_and_nothing_else(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        script = client.raw.home / "script.json"
        os.mkfifo(script)
        config = {"model_provider": "scripted", "model_providers.scripted.script": str(script)}
        messages = await client.until_answer(client.call("codex", prompt="go", config=config))
        pong = (await client.until_answer(client.request("ping", {})))[-1]

    assert messages[-1]["result"]["error"] == f"script {script}: not a regular file"
    assert pong["result"] == {}


@pytest.mark.promises("framing.never-blocked")
async def test_pipes_in_the_home_are_as_good_as_nothing(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        for name in ("history.jsonl", "auth.json", "AGENTS.md"):
            os.mkfifo(client.raw.home / name)
        messages = await client.until_answer(client.call("codex", prompt="go"))

    assert messages[0]["params"]["msg"]["history_log_id"] == 0
    assert messages[-1]["result"] == {"content": [{"type": "text", "text": "Done"}]}


@pytest.mark.promises("framing.never-blocked")
async def test_pipes_in_place_of_the_settings_and_of_the_description_of_the_server_do_not_block(
    tmp_path: Path,
) -> None:
    for name in ("config.toml", "serve.json"):
        os.mkfifo(tmp_path / name)
    process = await start_parley("mcp", env={"PATH": os.environ["PATH"], "PARLEY_HOME": str(tmp_path)})
    code, _, _ = await outcome_of(process)
    description = read_description(str(tmp_path))

    assert code == 0
    assert description == {}
