"""No hidden file reaches the model, under any name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from kit.builders.images import PNG
from kit.builders.trees import patch
from kit.clients.codex_calls import speaking
from kit.clients.shell_turns import shell
from kit.system.needs import BUBBLEWRAP, SANDBOX
from kit.system.swapped_files import swapped
from parley.testing import Call, ScriptedModel

SECRET: Final = "-----BEGIN PRIVATE KEY-----"

TURNS: Final = 60


class Ground:
    """A project, and a hidden directory beside it."""

    def __init__(self, path: Path) -> None:
        self.project, self.keys, self.outside = path / "project", path / "keys", path / "outside"
        for folder in (self.project, self.keys, self.outside, self.project / ".git", self.project / "docs"):
            folder.mkdir()
        (self.project / ".git/HEAD").write_text("ref: refs/heads/main\n")
        (self.keys / "id").write_text(f"{SECRET}\n")
        (self.keys / "id.png").write_bytes(PNG)
        (self.outside / "image.png").write_bytes(PNG)
        (self.project / "own.png").write_bytes(PNG)

    @property
    def config(self) -> str:
        return f"[sandbox]\nhidden_paths = [{json.dumps(str(self.keys))}]"


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def sent(model: ScriptedModel) -> str:
    """Return all content that the model was sent."""
    return json.dumps([request.body for request in model.requests])


# --- notes -----------------------------------------------------------------------------------


def _hard_link(ground: Ground, home: Path) -> None:
    os.link(ground.keys / "id", ground.project / "AGENTS.md")


def _link(ground: Ground, home: Path) -> None:
    (ground.project / "AGENTS.md").symlink_to(ground.keys / "id")


def _directory_link(ground: Ground, home: Path) -> None:
    (ground.project / "docs/keys").symlink_to(ground.keys)
    (ground.project / "AGENTS.md").symlink_to("docs/keys/id")


def _out_by_dots(ground: Ground, home: Path) -> None:
    (ground.project / "AGENTS.md").symlink_to("docs/../../keys/id")


def _key_in_the_project(ground: Ground, home: Path) -> None:
    """Put Parley's own key into the project, with a link to it in the home."""
    (ground.project / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": SECRET}))
    (home / "auth.json").symlink_to(ground.project / "auth.json")
    (ground.project / "AGENTS.md").symlink_to("auth.json")


def _by_way_of_proc(ground: Ground, home: Path) -> None:
    (ground.project / "AGENTS.md").symlink_to(f"/proc/self/root{ground.keys}/id")


def _own_notes(ground: Ground, home: Path) -> None:
    """Make the notes of the home a link into the project, which contains another link."""
    (home / "AGENTS.md").symlink_to(ground.project / "docs/notes.md")
    (ground.project / "docs/notes.md").symlink_to(ground.keys / "id")


WAYS: Final[list[Callable[[Ground, Path], None]]] = [
    *(_hard_link, _link, _directory_link, _out_by_dots, _key_in_the_project, _by_way_of_proc, _own_notes)
]


@pytest.mark.promises("model.nothing-hidden")
async def test_notes_that_are_a_hidden_file_by_another_name_are_not_read(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    async with speaking(parley_model, config=ground.config) as wire:
        for number, way in enumerate(WAYS):
            way(ground, wire.raw.home)
            wire.codex(number, "go", cwd=str(ground.project))
            await wire.answer(number)
            for name in (ground.project / "AGENTS.md", wire.raw.home / "auth.json", wire.raw.home / "AGENTS.md"):
                name.unlink(missing_ok=True)

    assert len(parley_model.requests) == len(WAYS)
    assert [
        way.__name__ for way, asked in zip(WAYS, parley_model.requests, strict=True) if SECRET in str(asked.body)
    ] == []


async def test_notes_of_the_kernel_are_not_read(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, env={"SERVER_SECRET": SECRET}) as wire:
        wire.codex(1, "go", cwd="/proc/self", config={"experimental_instructions_file": "environ"})
        error = await wire.text(1)
        (wire.work / "AGENTS.md").symlink_to("/proc/self/environ")
        wire.codex(2, "go", cwd=str(wire.work))
        await wire.answer(2)

    assert "failed to read experimental instructions file /proc/self/environ: not a regular file" in error
    assert SECRET not in sent(parley_model)


@pytest.mark.promises("model.nothing-hidden")
async def test_notes_that_are_swapped_between_turns_never_show_a_hidden_file(
    parley_model: ScriptedModel, ground: Ground, tmp_path: Path
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "own").write_text("Own notes.")
    (sources / "key").symlink_to(ground.keys / "id")
    (ground.project / "AGENTS.md").write_text("Own notes.")
    async with speaking(parley_model, config=ground.config) as wire:
        wire.codex(0, "go", cwd=str(ground.project))
        await wire.answer(0)
        async with swapped(ground.project / "AGENTS.md", sources / "own", sources / "key"):
            for number in range(1, TURNS):
                wire.reply(number, "again")
                await wire.answer(number)

    assert len(parley_model.requests) == TURNS
    assert SECRET not in sent(parley_model)
    assert any("Own notes." in str(asked.body) for asked in parley_model.requests)


@pytest.mark.promises("model.nothing-hidden")
async def test_notes_and_instructions_that_link_into_the_home_show_no_other_conversation(
    parley_model: ScriptedModel, ground: Ground, tmp_path: Path
) -> None:
    notes, instructions = ground.project / "docs/notes.md", tmp_path / "instructions.md"
    async with speaking(parley_model, config=ground.config) as wire:
        home = wire.raw.home
        wire.codex("first", f"say {SECRET}", cwd=str(ground.outside))
        await wire.answer("first")
        before = len(parley_model.requests)
        for name in ("parley.db", "parley.db-wal"):
            (home / "AGENTS.md").symlink_to(notes)
            for link in (notes, instructions):
                link.symlink_to(home / name)
            wire.codex(name, "go", cwd=str(ground.project))
            await wire.answer(name)
            (home / "AGENTS.md").unlink()
            config = {"experimental_instructions_file": str(instructions)}
            wire.codex(f"{name} as instructions", "go", cwd=str(ground.project), config=config)
            error = await wire.text(f"{name} as instructions")
            for link in (notes, instructions):
                link.unlink()

            assert "failed to read experimental instructions file" in error
            assert "access is not allowed" in error

    later = parley_model.requests[before:]
    assert len(later) == 2
    assert SECRET not in json.dumps([request.body for request in later])


@pytest.mark.promises("model.nothing-hidden")
async def test_instructions_may_lie_in_the_home_and_not_where_secrets_do(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    async with speaking(parley_model, config=ground.config) as wire:
        (wire.raw.home / "prompt.md").write_text("Be brief.")
        (ground.project / "prompt.md").symlink_to(ground.keys / "id")
        named = [
            wire.raw.home / "prompt.md",
            ground.keys / "id",
            ground.project / "prompt.md",
            wire.raw.home / "config.toml",
        ]
        said: list[Any] = []
        for number, path in enumerate(named):
            wire.codex(number, "go", cwd=str(ground.project), config={"experimental_instructions_file": str(path)})
            said.append((await wire.answer(number))[-1]["result"])

    assert [bool(result.get("isError")) for result in said] == [False, True, True, True]
    assert len(parley_model.requests) == 1
    assert "Be brief." in sent(parley_model)


# --- images ----------------------------------------------------------------------------------


@pytest.mark.promises("image.view", "image.nothing-hidden")
async def test_an_image_that_is_hidden_or_led_to_by_a_link_of_the_project_is_not_shown(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    os.link(ground.keys / "id.png", ground.project / "hard.png")
    (ground.project / "out.png").symlink_to(ground.outside / "image.png")
    (ground.project / "in.png").symlink_to("docs/../own.png")
    refused = {
        "hard.png": "access is not allowed",
        str(ground.keys / "id.png"): "access is not allowed",
        "out.png": "a symbolic link leads out of the project",
        "/proc/self/root/proc/self/environ": "not a regular file",
    }
    shown = ["own.png", "in.png", "../outside/image.png", str(ground.outside / "image.png")]
    paths = [*refused, *shown]
    parley_model.says(*(Call("view_image", json.dumps({"path": path}), f"c{n}") for n, path in enumerate(paths)))
    parley_model.says("Done")
    async with speaking(parley_model, config=ground.config) as wire:
        wire.codex(1, "go", cwd=str(ground.project))
        await wire.answer(1)

        items = [{"type": "local_image", "path": path} for path in (*refused, *shown) if "environ" not in path]
        wire.call(2, "conversationSendMessage", {"conversation_id": wire.sessions[0], "content": items})
        await wire.answer(2)
        await parley_model.wait_for_requests(3)

    messages = parley_model.requests[1].body["messages"]
    outputs = [message["content"] for message in messages if message["role"] == "tool"]
    assert outputs[: len(refused)] == [f"{path}: {why}" for path, why in refused.items()]
    assert outputs[len(refused) :] == [f"The image {path} is attached." for path in shown]
    named = parley_model.requests[2].body["messages"][-1]["content"]
    assert [part["type"] for part in named] == ["image_url"] * len(shown)


@pytest.mark.promises("image.nothing-hidden")
async def test_the_error_for_an_image_does_not_show_whether_a_hidden_file_exists(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    (ground.keys / "folder").mkdir()
    (ground.keys / "link.png").symlink_to(ground.outside / "image.png")
    (ground.project / "way").symlink_to(ground.keys)
    existing = ("id", "id.png", "folder", "link.png", "folder/../../outside/image.png")
    missing = ("none.png", "none/none.png", "id/none.png", "folder/none.png", "none/../../outside/image.png")
    paths = [f"{way}/{name}" for way in (str(ground.keys), "way") for name in (*existing, *missing)]
    parley_model.says(*(Call("view_image", json.dumps({"path": path}), f"c{n}") for n, path in enumerate(paths)))
    parley_model.says("Done")
    async with speaking(parley_model, config=ground.config) as wire:
        wire.codex(0, "go", cwd=str(ground.project))
        await wire.answer(0)

        refused: list[str] = []
        for number, path in enumerate(paths, start=1):
            item = {"type": "local_image", "path": path}
            wire.call(number, "conversationSendMessage", {"conversation_id": wire.sessions[0], "content": [item]})
            refused.append(await wire.text(number))

    outputs = [m["content"] for m in parley_model.requests[1].body["messages"] if m["role"] == "tool"]
    assert outputs == [f"{path}: access is not allowed" for path in paths]
    assert [
        path for path, text in zip(paths, refused, strict=True) if f"{path}: access is not allowed" not in text
    ] == []


# --- commands --------------------------------------------------------------------------------

HIDDEN_NAMES: Final = (
    *("folder", "id", "link", "dangling", "loop", "link/none", "folder/../link", "folder/../../outside"),
    *("none", "none/none", "id/none", "folder/none", "none/../link", "none/../../outside"),
)
"""Paths below a hidden directory. Some of them exist, and some are links out of the directory."""


def _with_links(ground: Ground) -> None:
    (ground.keys / "folder").mkdir()
    for name, target in (("link", ground.outside), ("dangling", "/nowhere/else"), ("loop", "loop")):
        (ground.keys / name).symlink_to(target)
    (ground.project / "way").symlink_to(ground.keys)


async def _outputs(model: ScriptedModel, ground: Ground, *calls: Call) -> list[str]:
    """Return what the model gets for calls in the project, of which none is approved."""
    model.says(*calls)
    model.says("Done")
    async with speaking(model, config=ground.config) as wire:
        wire.codex(1, "go", cwd=str(ground.project), approval_policy="never", sandbox="workspace-write")
        await wire.answer(1)
    return [m["content"] for m in model.requests[-1].body["messages"] if m["role"] == "tool"]


@SANDBOX
@pytest.mark.promises("shell.nothing-hidden")
async def test_the_result_of_a_command_does_not_show_whether_its_hidden_directory_exists(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    _with_links(ground)
    paths = [f"{way}/{name}" for way in (str(ground.keys), "way") for name in HIDDEN_NAMES]
    commands = [("ls",), ("apply_patch", patch("*** Add File: a.txt", "+a"))]
    calls = [
        shell(f"c{place}-{number}", *command, workdir=path)
        for number, command in enumerate(commands)
        for place, path in enumerate(paths)
    ]
    outputs = await _outputs(parley_model, ground, *calls)

    whole = [path if path.startswith("/") else f"{ground.project}/{path}" for path in paths]
    assert outputs == [
        *(f"execution error: the working directory {path} is hidden from commands" for path in whole),
        *(f"error: invalid working directory {path}: {ground.keys} is protected" for path in whole),
    ]
    assert os.listdir(ground.outside) == ["image.png"]


@SANDBOX
async def test_a_conversation_in_a_hidden_directory_works_in_its_own_directories(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    project = ground.keys / "project"
    (project / "sub").mkdir(parents=True)
    (project / "link").symlink_to("sub")
    ground.project = project
    script = ("sh", "-c", "pwd; echo > made")
    calls = [shell(workdir, *script, workdir=workdir) for workdir in ("sub", "link", "..", "../folder")]
    inside, linked, *outside = await _outputs(parley_model, ground, *calls)

    assert [json.loads(output)["output"] for output in (inside, linked)] == [f"{project}/sub\n"] * 2
    assert outside == [
        f"execution error: the working directory {path} is hidden from commands"
        for path in (ground.keys, f"{project}/../folder")
    ]
    assert sorted(path.name for path in project.rglob("made")) == ["made"]


@BUBBLEWRAP
@pytest.mark.promises("shell.nothing-hidden")
async def test_the_error_for_a_program_does_not_show_whether_its_hidden_path_exists(
    parley_model: ScriptedModel, ground: Ground
) -> None:
    _with_links(ground)
    for script in (ground.project / "script", ground.outside / "script"):
        script.write_text("#!/nowhere/at/all\n")
        script.chmod(0o755)
    programs = [
        f"{way}/{name}/{rest}"
        for way in (str(ground.keys), "way")
        for name in HIDDEN_NAMES
        for rest in ("script", "../../project/script")
    ]
    calls = [shell(f"c{place}", program) for place, program in enumerate(programs)]
    visible, *outputs = await _outputs(parley_model, ground, shell("visible", "./script"), *calls)

    missing = "No such file or directory (os error 2)"
    assert visible == f"execution error: the interpreter of ./script cannot be run: {missing}"
    assert outputs == [f"execution error: {missing}"] * len(programs)


# --- patches and diffs -----------------------------------------------------------------------


@pytest.mark.promises("patch.nothing-hidden")
async def test_neither_a_patch_nor_a_diff_shows_a_hidden_file(parley_model: ScriptedModel, ground: Ground) -> None:
    os.link(ground.keys / "id", ground.project / "guess.txt")
    guess = patch("*** Update File: guess.txt", "@@", f" {SECRET}", "+more")
    parley_model.says(
        shell("c1", "apply_patch", guess),
        shell("c2", "apply_patch", patch("*** Add File: a.txt", "+a")),
        shell("c3", "ln", "-f", str(ground.keys / "id"), "a.txt"),
        shell("c4", "apply_patch", patch("*** Add File: b.txt", "+b")),
    )
    parley_model.says("Done")
    async with speaking(parley_model, config=ground.config) as wire:
        wire.codex(1, "go", cwd=str(ground.project))
        messages = await wire.answer(1)

    first, *_ = [m["content"] for m in parley_model.requests[1].body["messages"] if m["role"] == "tool"]
    assert first == f"error: Failed to read file to update {ground.project}/guess.txt: access is not allowed"
    assert (ground.keys / "id").read_text() == f"{SECRET}\n"
    diffs = [m["params"]["msg"] for m in messages if m.get("method") == "turn_diff"]
    assert len(diffs) == 2
    assert SECRET not in json.dumps(diffs)
