"""`AGENTS.md`: the notes of the user and of the project, which the server does not trust."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.clients.codex_calls import APIS, User, Wire, body, speaking
from parley.testing import ScriptedModel
from parley.testing.render import Api

BETWEEN = "\n\n--- project-doc ---\n\n"


async def _notes_in_request(wire: Wire, cwd: Path) -> str | None:
    """Return the notes in the model request of a turn in `cwd`, after checking the rest of the request."""
    request_id = wire.calls_made + 1
    wire.codex(request_id, "go", cwd=str(cwd))
    await wire.answer(request_id)
    asked = wire.model.requests[-1].body
    plain = body("chat", User("go"), cwd=cwd, session=wire.sessions[-1])
    if asked == plain:
        return None
    text = str(asked["messages"][2]["content"])
    notes = text.removeprefix("<user_instructions>\n\n").removesuffix("\n\n</user_instructions>")
    assert asked == body("chat", User("go"), cwd=cwd, session=wire.sessions[-1], notes=notes)
    return notes


def _repository(path: Path) -> Path:
    (path / ".git").mkdir(parents=True)
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return path


@pytest.mark.promises("model.notes")
@pytest.mark.parametrize("api", APIS)
async def test_notes_of_the_home_and_of_the_project_come_after_the_environment(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as wire:
        (wire.raw.home / "AGENTS.md").write_text("\n Home rules. \n\n")
        wire.codex(1, "go")
        await wire.answer(1)
        (wire.work / "AGENTS.md").write_text("Project rules.\n")
        wire.codex(2, "go")
        await wire.answer(2)

    expected = ["Home rules.", f"Home rules.{BETWEEN}Project rules.\n"]
    assert [request.body for request in parley_model.requests] == [
        body(api, User("go"), cwd=wire.work, session=session, notes=notes)
        for session, notes in zip(wire.sessions, expected, strict=True)
    ]


@pytest.mark.promises("model.notes")
async def test_notes_are_those_of_the_directory_or_else_of_the_root_of_its_repository(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    repository = _repository(tmp_path / "repository")
    deep = repository / "src" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "AGENTS.md").write_text("outside")
    (repository / "src" / "AGENTS.md").write_text("between")
    async with speaking(parley_model) as wire:
        assert await _notes_in_request(wire, deep) is None
        (repository / "AGENTS.md").write_text("of the root")
        assert await _notes_in_request(wire, deep) == "of the root"
        assert await _notes_in_request(wire, repository) == "of the root"
        (deep / "AGENTS.md").write_text("of the directory")
        assert await _notes_in_request(wire, deep) == "of the directory"
        assert await _notes_in_request(wire, repository / "src") == "between"
        assert await _notes_in_request(wire, tmp_path / "no" / "such" / "directory") is None


@pytest.mark.promises("model.notes")
async def test_notes_in_a_directory_that_every_user_can_write_to_are_ignored(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    shared = _repository(tmp_path / "shared")
    shared.chmod(0o1777)
    (shared / "AGENTS.md").write_text("of a stranger")
    (shared / "project").mkdir()
    async with speaking(parley_model) as wire:
        assert await _notes_in_request(wire, shared / "project") is None
        assert await _notes_in_request(wire, shared) == "of a stranger"  # the client has chosen this directory


async def test_a_worktree_is_a_repository_too(parley_model: ScriptedModel, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "AGENTS.md").write_text("of the worktree")
    (tmp_path / "deep").mkdir()
    async with speaking(parley_model) as wire:
        assert await _notes_in_request(wire, tmp_path / "deep") == "of the worktree"


@pytest.mark.promises("model.notes")
async def test_notes_are_read_anew_for_every_turn(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        wire.codex(1, "one")
        await wire.answer(1)
        (wire.work / "AGENTS.md").write_text("New rules.")
        wire.reply(2, "two")
        await wire.answer(2)

    notes = [request.body["messages"][2]["content"] for request in parley_model.requests]
    assert notes == ["one", "<user_instructions>\n\nNew rules.\n\n</user_instructions>"]


@pytest.mark.promises("model.notes")
async def test_long_notes_are_cut_and_a_broken_character_is_marked(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    (tmp_path / "AGENTS.md").write_text("x" * 99 + "ü" + "y" * 1000)
    async with speaking(parley_model, config="project_doc_max_bytes = 100") as wire:
        assert await _notes_in_request(wire, tmp_path) == "x" * 99 + "\N{REPLACEMENT CHARACTER}"
        wire.codex(2, "go", cwd=str(tmp_path), config={"project_doc_max_bytes": 0})
        await wire.answer(2)

    assert parley_model.requests[1].body == body("chat", User("go"), cwd=tmp_path, session=wire.sessions[1])


@pytest.mark.promises("model.notes-inside")
async def test_notes_that_lead_out_of_the_repository_are_none(parley_model: ScriptedModel, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password")
    (tmp_path / "AGENTS.md").write_text("a neighbour's")
    linked, linked_above, chained, inside = (_repository(tmp_path / name) for name in ("a", "b", "c", "d"))
    (linked / "AGENTS.md").symlink_to(tmp_path / "secret")
    (linked_above / "AGENTS.md").symlink_to("../AGENTS.md")
    (chained / "step").symlink_to(tmp_path / "secret")
    (chained / "AGENTS.md").symlink_to("step")
    (inside / "docs").mkdir()
    (inside / "docs" / "notes.md").write_text("linked, but our own")
    (inside / "AGENTS.md").symlink_to("docs/notes.md")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "AGENTS.md").symlink_to("AGENTS.md")
    async with speaking(parley_model) as wire:
        for folder in (linked, linked_above, chained, tmp_path / "loop"):
            assert await _notes_in_request(wire, folder) is None
        assert await _notes_in_request(wire, inside) == "linked, but our own"


async def test_notes_that_are_no_file_are_none_and_hold_up_nothing(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    pipe, folder, empty, device = (tmp_path / name for name in ("pipe", "folder", "empty", "device"))
    for path in (pipe, folder, empty, device):
        path.mkdir()
    os.mkfifo(pipe / "AGENTS.md")
    (folder / "AGENTS.md").mkdir()
    (empty / "AGENTS.md").touch()
    (device / "AGENTS.md").symlink_to("/dev/zero")
    async with speaking(parley_model) as wire:
        for path in (pipe, folder, empty, device):
            assert await _notes_in_request(wire, path) is None
        os.mkfifo(wire.raw.home / "AGENTS.md")
        assert await _notes_in_request(wire, empty) is None
