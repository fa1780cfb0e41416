"""Settings and keys in Parley's home that are links into a project: commands neither read nor change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.clients.wire_client import speaking
from kit.system.needs import MECHANISMS
from parley.testing import Call, ScriptedModel


@pytest.mark.promises("sandbox.hidden")
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["config.toml", "auth.json"])
async def test_the_target_of_a_linked_file_of_the_home_is_hidden_in_a_project(
    parley_model: ScriptedModel, tmp_path: Path, mechanism: str, name: str
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, project / "dotfiles"):
        folder.mkdir(parents=True)
    target = project / "dotfiles" / name
    script = (
        f"cat dotfiles/{name}; echo evil > dotfiles/{name}; rm -f dotfiles/{name}; mv dotfiles away; echo tried"
    )
    async with speaking(parley_model, home=home) as client:
        text = (home / name).read_text() if name == "config.toml" else '{"OPENAI_API_KEY": "sesame"}'
        target.write_text(text)
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(target)
        conversation = await client.create(
            cwd=str(project),
            approval_policy="never",
            sandbox="workspace-write",
            config={"sandbox.mechanism": mechanism, "sandbox_workspace_write.exclude_slash_tmp": True},
        )
        parley_model.says(Call("shell", {"command": ["sh", "-c", script]}, "call"))
        parley_model.says("Done")
        await client.say(conversation, "go")
        await client.over(conversation)
        told = parley_model.requests[-1].body["messages"][-1]["content"]

    assert "tried" in told
    assert text.splitlines()[0] not in told
    assert target.read_text() == text
