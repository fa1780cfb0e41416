"""An approval covers the directory, the program and the files that existed when the person was asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from kit.builders.trees import patch, tree
from kit.clients.approving import ASKS_FIRST, ApprovingClient, approving_client, events_of, last_output
from kit.clients.shell_turns import shell
from parley.testing import ScriptedModel
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

YES: Final = {"decision": "approved"}
NO: Final = {"decision": "denied"}


class Ground:
    """A project with a file and a program, and other directories that the approval does not cover."""

    def __init__(self, path: Path) -> None:
        self.project, self.victim, self.programs = path / "project", path / "victim", path / "bin"
        for folder in (self.project, self.victim):
            (folder / "sub").mkdir(parents=True)
            (folder / "precious").write_text(folder.name)
            (folder / "sub/file.txt").write_text("one\n")
        self.programs.mkdir()
        self.write_program("good")

    def write_program(self, word: str) -> None:
        """Replace the program by another file."""
        new = self.programs / "new"
        new.write_text(f"#!/bin/sh\necho {word} >> ran\n")
        new.chmod(0o755)
        new.rename(self.programs / "tool")

    def redirect(self) -> None:
        """Replace the project by a link to another directory."""
        self.project.rename(self.project.parent / "aside")
        self.project.symlink_to(self.victim)

    def exchange(self) -> None:
        """Replace the project with another directory, and that directory with a third one."""
        spare = self.project.parent / "spare"
        for old, new in ((self.project, spare), (self.victim, self.project), (spare, self.victim)):
            old.rename(new)

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.programs}:{os.environ['PATH']}"}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


async def asked(client: ApprovingClient) -> tuple[Any, list[Any]]:
    """Return the parameters of the next approval request, and the events before it."""
    messages = await client.until_asked()
    return messages[-1]["params"], events_of(messages)


def answer(client: ApprovingClient, number: int, decision: str) -> None:
    """Answer the approval request with this number, in the shape of the newer version."""
    client.answer(number, {"action": "accept", "content": {"decision": decision}})


# --- commands --------------------------------------------------------------------------------


@pytest.mark.promises("approvals.covers")
@pytest.mark.parametrize("version", [PLAIN_VERSION, FULL_VERSION])
async def test_a_working_directory_that_becomes_a_link_needs_another_approval(
    parley_model: ScriptedModel, ground: Ground, version: str
) -> None:
    parley_model.says(shell("c1", "rm", "precious"))
    parley_model.says("Done")
    async with approving_client(parley_model, version=version) as client:
        call = client.codex(cwd=str(ground.project))
        first, _ = await asked(client)
        ground.redirect()
        client.answer(0, YES if version == PLAIN_VERSION else {"action": "accept", "content": YES})
        second, events = await asked(client)
        client.answer(1, NO if version == PLAIN_VERSION else {"action": "accept", "content": NO})
        await client.until_answer(call)

    assert (first["codex_cwd"], second["codex_cwd"]) == (str(ground.project), str(ground.victim))
    assert second["codex_command"] == ["rm", "precious"]
    assert second["message"].startswith("The working directory was replaced after this was approved.\n")
    assert [event["type"] for event in events if event["type"].startswith("exec_command")] == []
    assert {
        "type": "background_event",
        "message": "Not started: the working directory was replaced after the approval",
    } in events
    assert last_output(parley_model) == "exec command rejected by user"
    assert (ground.victim / "precious").exists()
    assert (ground.project.parent / "aside/precious").exists()


@pytest.mark.promises("approvals.covers")
async def test_a_command_that_is_approved_again_runs_in_the_directory_of_the_second_request(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    parley_model.says(shell("c1", "rm", "precious"))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        call = client.codex(cwd=str(ground.project))
        await asked(client)
        ground.exchange()
        answer(client, 0, "approved")
        second, _ = await asked(client)
        answer(client, 1, "approved")
        await client.until_answer(call)

    assert second["codex_cwd"] == str(ground.project)
    assert (ground.project / "precious").exists() is False
    assert (ground.victim / "precious").exists()


@pytest.mark.promises("approvals.covers")
async def test_a_program_that_is_replaced_needs_another_approval(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    parley_model.says(shell("c1", "tool"), shell("c2", "tool"))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION, env=ground.env) as client:
        call = client.codex(cwd=str(ground.project))
        await asked(client)
        ground.write_program("evil")
        answer(client, 0, "approved")
        second, _ = await asked(client)
        answer(client, 1, "denied")
        await asked(client)
        answer(client, 2, "approved")
        await client.until_answer(call)

    assert second["message"].startswith("The program was replaced after this was approved.\n")
    assert (ground.project / "ran").read_text() == "evil\n"


async def test_a_program_that_comes_first_in_the_path_by_then_is_not_the_approved_one(
    parley_model: ScriptedModel, ground: Ground, tmp_path: Path
) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    env = {"PATH": f"{earlier}:{ground.env['PATH']}"}
    parley_model.says(shell("c1", "tool"))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION, env=env) as client:
        call = client.codex(cwd=str(ground.project))
        await asked(client)
        (ground.programs / "tool").rename(earlier / "tool")
        ground.write_program("good")
        answer(client, 0, "approved")
        await asked(client)
        answer(client, 1, "denied")
        await client.until_answer(call)

    assert not (ground.project / "ran").exists()


@pytest.mark.promises("approvals.covers", "approvals.session")
async def test_an_approval_for_the_session_holds_for_the_same_directory_and_program_alone(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    parley_model.says(*(shell(f"c{number}", "tool") for number in range(2)))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION, env=ground.env) as client:
        call = client.codex(cwd=str(ground.project))
        await asked(client)
        answer(client, 0, "approved_for_session")
        await client.until_answer(call)
        assert (ground.project / "ran").read_text() == "good\n" * 2

        parley_model.says(shell("c3", "tool"))
        parley_model.says("Done")
        ground.exchange()
        listed = (await client.value_of(client.call("conversationsList")))["conversations"]
        call = client.call("codex-reply", sessionId=listed[0]["conversation_id"], prompt="again")
        await asked(client)
        answer(client, 1, "denied")
        await client.until_answer(call)

    assert last_output(parley_model) == "exec command rejected by user"
    assert (ground.victim / "ran").read_text() == "good\n" * 2
    assert not (ground.project / "ran").exists()


@pytest.mark.promises("approvals.covers")
async def test_a_command_that_is_replaced_after_every_approval_is_refused_in_the_end(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    parley_model.says(shell("c1", "tool"))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION, env=ground.env) as client:
        call = client.codex(cwd=str(ground.project))
        for number in range(3):
            await asked(client)
            ground.write_program(f"evil{number}")
            answer(client, number, "approved")
        messages = await client.until_answer(call)

    assert "elicitation/create" not in [message.get("method") for message in messages]
    assert last_output(parley_model) == (
        "exec command rejected: its program, directory or files were replaced after each of 3 approvals"
    )
    assert not (ground.project / "ran").exists()


def _nothing(ground: Ground) -> None:
    """Change only a file that the approval does not cover."""
    (ground.project / "another").write_text("new")
    (ground.project / "precious").write_text("changed")


@pytest.mark.promises("approvals.covers")
@pytest.mark.parametrize(("replace", "approvals"), [(_nothing, 1), (Ground.redirect, 2), (Ground.exchange, 2)])
async def test_after_a_restart_an_approval_covers_what_was_there_before_it(
    parley_model: ScriptedModel, ground: Ground, tmp_path: Path, replace: Callable[[Ground], None], approvals: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    parley_model.says(shell("c1", "rm", "precious"))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION, home=home) as client:
        conversation = await client.create(cwd=str(ground.project), **ASKS_FIRST)
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        await client.until_asked()
    replace(ground)
    async with approving_client(parley_model, version=FULL_VERSION, home=home) as client:
        client.stream(conversation)
        await client.until_asked()
        answer(client, 0, "approved")
        if approvals == 2:
            second, _ = await asked(client)
            assert second["message"].startswith("Something was changed after this was approved.\n")
            answer(client, 1, "denied")
        await client.until_method("task_complete")

    left = {place for place in tree(tmp_path) if place.endswith("precious")}
    assert len(left) == approvals


# --- patches ---------------------------------------------------------------------------------

UPDATE: Final = patch("*** Update File: sub/file.txt", "@@", "-one", "+two", "*** Add File: new/deep.txt", "+new")


def _other_directory(ground: Ground) -> None:
    (ground.project / "sub").rename(ground.project / "aside")
    (ground.victim / "sub").rename(ground.project / "sub")


def _other_content(ground: Ground) -> None:
    (ground.project / "sub/file.txt").write_text("zero\none\n")


def _new_directory(ground: Ground) -> None:
    (ground.victim / "sub").rename(ground.project / "new")


@pytest.mark.promises("approvals.covers")
@pytest.mark.parametrize("replace", [_other_directory, _other_content, _new_directory])
async def test_a_patch_whose_files_differ_from_those_shown_needs_another_approval(
    parley_model: ScriptedModel, ground: Ground, replace: Callable[[Ground], None]
) -> None:
    parley_model.says(shell("c1", "apply_patch", UPDATE), shell("c2", "apply_patch", UPDATE))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        call = client.codex(cwd=str(ground.project))
        await asked(client)
        replace(ground)
        before = tree(ground.project)
        answer(client, 0, "approved")
        second, events = await asked(client)
        answer(client, 1, "denied")
        between = tree(ground.project)
        await asked(client)
        answer(client, 2, "approved")
        await client.until_answer(call)

    assert second["message"].startswith("A file or directory of this patch was changed after it was approved.\n")
    assert [event["type"] for event in events if event["type"].startswith("patch_apply")] == []
    assert between == before
    assert (ground.project / "sub/file.txt").read_text().endswith("two\n")


@pytest.mark.promises("approvals.covers")
@pytest.mark.parametrize(("replace", "approvals"), [(_nothing, 1), (_other_content, 2), (_other_directory, 2)])
async def test_after_a_restart_an_approval_covers_the_files_of_a_patch_as_they_were_before_it(
    parley_model: ScriptedModel, ground: Ground, tmp_path: Path, replace: Callable[[Ground], None], approvals: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    parley_model.says(shell("c1", "apply_patch", UPDATE))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION, home=home) as client:
        conversation = await client.create(cwd=str(ground.project), **ASKS_FIRST)
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        await client.until_asked()
    replace(ground)
    async with approving_client(parley_model, version=FULL_VERSION, home=home) as client:
        client.stream(conversation)
        await client.until_asked()
        answer(client, 0, "approved")
        if approvals == 2:
            await asked(client)
            answer(client, 1, "denied")
        await client.until_method("task_complete")

    assert (ground.project / "new/deep.txt").exists() == (approvals == 1)
    assert ("two" in (ground.project / "sub/file.txt").read_text()) == (approvals == 1)


async def test_a_patch_whose_directory_becomes_a_link_fails_and_changes_nothing(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    parley_model.says(shell("c1", "apply_patch", UPDATE))
    parley_model.says("Done")
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        call = client.codex(cwd=str(ground.project))
        await asked(client)
        (ground.project / "sub").rename(ground.project / "aside")
        (ground.project / "sub").symlink_to(ground.victim / "sub")
        before = tree(ground.project.parent)
        answer(client, 0, "approved")
        await client.until_answer(call)

    path = f"{ground.project}/sub/file.txt"
    assert last_output(parley_model) == (
        f"error: Failed to read file to update {path}: {ground.project}/sub is a symbolic link"
    )
    assert tree(ground.project.parent) == before
