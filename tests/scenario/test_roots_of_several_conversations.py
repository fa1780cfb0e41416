"""A command of one conversation cannot replace the directories of another conversation, over several turns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kit.clients.wire_client import WireClient, speaking
from kit.system.needs import MECHANISMS
from parley.testing import Call, ScriptedModel

pytestmark = pytest.mark.promises("sandbox.replaced")


class Writers:
    """Conversations of one server. Each may write to its own directory and to the named directories."""

    def __init__(self, client: WireClient, mechanism: str) -> None:
        self._client, self._mechanism = client, mechanism

    async def open(self, cwd: Path, *roots: Path) -> str:
        config = {
            "sandbox.mechanism": self._mechanism,
            "sandbox_workspace_write.exclude_slash_tmp": True,
            "sandbox_workspace_write.exclude_tmpdir_env_var": True,
            "sandbox_workspace_write.writable_roots": [str(root) for root in roots],
        }
        call = self._client.call(
            "conversationCreate",
            prompt="",
            model="m",
            cwd=str(cwd),
            approval_policy="never",
            sandbox="workspace-write",
            config=config,
        )
        return str((await self._client.value_of(call))["conversation_id"])

    async def run(self, conversation: str, script: str, **overrides: Any) -> str:
        """Run a script; return its output for the model."""
        model = self._client.model
        model.says(Call("shell", {"command": ["sh", "-c", script]}, "call"))
        model.says("Done")
        await self._client.say(conversation, "go", **overrides)
        await self._client.over(conversation)
        return str(model.requests[-1].body["messages"][-1]["content"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_link_in_the_place_of_a_project_leads_nowhere_also_under_new_settings(
    parley_model: ScriptedModel, mechanism: str, tmp_path: Path
) -> None:
    project, other, outside = tmp_path / "wide" / "project", tmp_path / "other", tmp_path / "outside"
    for folder in (project, other, outside):
        folder.mkdir(parents=True)
    async with speaking(parley_model) as client:
        writers = Writers(client, mechanism)
        ours, theirs = await writers.open(project), await writers.open(other, project.parent)
        written = await writers.run(ours, "touch inside && echo written")
        moved = await writers.run(theirs, f"mv {project} {project}-away && ln -s {outside} {project} && echo moved")
        outputs = [
            await writers.run(ours, f"echo evil > {outside}/file; echo tried", **overrides)
            for overrides in ({}, {"model": "another"}, {"cwd": str(project)})
        ]

    assert [written.split(",")[0], moved.split(",")[0]] == ['{"output":"written\\n"', '{"output":"moved\\n"']
    assert outputs == [
        f"execution error: {project} is no longer writable: it was replaced by another directory",
    ] * len(outputs)
    assert os.listdir(outside) == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_link_in_the_place_of_a_project_leads_nowhere_after_a_restart(
    parley_model: ScriptedModel, mechanism: str, tmp_path: Path
) -> None:
    home, wide, outside, link = (tmp_path / name for name in ("home", "wide", "outside", "link"))
    project, target = wide / "project", tmp_path / "target"
    for folder in (project, outside, target):
        folder.mkdir(parents=True)
    link.symlink_to(target)
    async with speaking(parley_model, home=home) as client:
        writers = Writers(client, mechanism)
        ours, theirs, linked = [await writers.open(cwd) for cwd in (project, wide, link)]
        await writers.run(theirs, f"mv {project} {project}-away && ln -s {outside} {project}")
    async with speaking(parley_model, home=home) as client:
        writers = Writers(client, mechanism)
        outputs = [
            await writers.run(ours, f"echo evil > {outside}/file; echo tried", **overrides)
            for overrides in ({}, {"model": "another"})
        ]
        await writers.run(linked, "touch written")

    assert outputs == [
        f"execution error: {project} is no longer writable: it was replaced by another directory",
    ] * len(outputs)
    assert (os.listdir(outside), os.listdir(target)) == ([], ["written"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_link_in_the_place_of_a_root_that_was_missing_leads_nowhere(
    parley_model: ScriptedModel, mechanism: str, tmp_path: Path
) -> None:
    wide, other, outside = tmp_path / "wide", tmp_path / "other", tmp_path / "outside"
    for folder in (wide, other, outside):
        folder.mkdir()
    async with speaking(parley_model) as client:
        writers = Writers(client, mechanism)
        first, second = await writers.open(wide, wide / "build"), await writers.open(other, wide / "build")
        await writers.run(second, "true")
        linked = await writers.run(first, f"ln -s {outside} build && echo linked")
        later = [await writers.open(wide, wide / "build"), await writers.open(other, wide / "build")]
        for conversation in (second, *later):
            await writers.run(conversation, f"echo evil > {outside}/file")

    assert linked.split(",")[0] == '{"output":"linked\\n"'
    assert os.listdir(outside) == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_root_that_the_user_makes_between_two_turns_is_written_to(
    parley_model: ScriptedModel, mechanism: str, tmp_path: Path
) -> None:
    work, build = tmp_path / "work", tmp_path / "build"
    work.mkdir()
    async with speaking(parley_model) as client:
        writers = Writers(client, mechanism)
        conversation = await writers.open(work, build)
        await writers.run(conversation, "true")
        build.mkdir()
        await writers.run(conversation, f"touch {build}/made")

    assert os.listdir(build) == ["made"]
