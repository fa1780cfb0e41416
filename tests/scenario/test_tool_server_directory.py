"""The working directory of a tool server is never one that commands can write to, unless it is configured."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kit.clients.wire_client import speaking
from parley.testing import ScriptedModel

WHERE = "import os, sys; open(sys.argv[1], 'w').write(os.getcwd()); print(file=sys.stderr)"


async def started(model: ScriptedModel, home: Path, config: str) -> None:
    """Make a conversation start its tool servers, each of which exits at once."""
    model.says("Hello")
    async with speaking(model, home=home, config=config) as client:
        conversation = await client.create()
        await client.say(conversation, "hi")
        await client.over(conversation)


def table(name: str, command: str, *args: str, cwd: Path | None = None) -> str:
    lines = [f"[mcp_servers.{name}]", f"command = {json.dumps(command)}", f"args = {json.dumps(args)}"]
    return "\n".join((*lines, *([f"cwd = {json.dumps(str(cwd))}"] if cwd else []), ""))


@pytest.mark.promises("servers.directory")
async def test_a_tool_server_starts_in_no_project_unless_its_settings_name_one(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    named = tmp_path / "named"
    named.mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/json.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')")

    config = (
        table("plain", sys.executable, "-c", WHERE, str(tmp_path / "plain"))
        + table("named", sys.executable, "-c", WHERE, str(tmp_path / "in-named"), cwd=named)
        + table("module", sys.executable, "-m", "json.tool", str(tmp_path / "missing"))
    )
    await started(parley_model, tmp_path / "home", config)

    assert (tmp_path / "plain").read_text() == "/"
    assert (tmp_path / "in-named").read_text() == str(named)
    assert "planted" not in os.listdir(tmp_path)


@pytest.mark.promises("servers.directory")
async def test_a_relative_program_is_looked_for_beside_the_settings(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    program = tmp_path / "home/tool"
    program.write_text(f"#!/bin/sh\npwd > {tmp_path}/where\n")
    program.chmod(0o755)

    await started(parley_model, tmp_path / "home", table("own", "./tool"))

    assert (tmp_path / "where").read_text() == "/\n"
