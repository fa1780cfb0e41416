"""The examples that show the text of a turn as it is written, with the official client of their language."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from kit.clients.npm import TYPESCRIPT_SDK, fetched, output_of
from parley.testing import HOLD, Call, Pieces, ScriptedModel
from parley.testing.home import Home

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"
RUN_SECONDS: Final = 120.0
COMPILER_OPTIONS: Final = (
    *("--strict", "--skipLibCheck", "--types", "node"),
    *("--target", "es2022", "--module", "nodenext"),
)
FIRST: Final = "".join(f"This is line {number}, which comes in pieces.\n" for number in range(20))
SECOND: Final = FIRST.replace("line", "another line")


@contextmanager
def home_of(model: ScriptedModel, programs: Path) -> Iterator[tuple[Home, dict[str, str]]]:
    """Return a home, and the environment of a client that finds `parley` on its path."""
    home = Home(model)
    home.open()
    programs.mkdir()
    (programs / "parley").symlink_to(Path(sys.executable).parent / "parley")
    try:
        yield home, {**home.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    finally:
        home.close()


async def check_live(model: ScriptedModel, *program: str, env: dict[str, str], cwd: Path) -> None:
    """Check that the example prints the first half of the text before the model has sent the second."""
    model.says(Pieces(FIRST, 7), HOLD, Pieces(SECOND, 7))
    process = await asyncio.create_subprocess_exec(*program, "Tell", "me", stdout=PIPE, env=env, cwd=cwd)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(RUN_SECONDS):
            first = await process.stdout.readexactly(len(FIRST))
            await model.wait_until_held()
            model.release()
            rest = await process.stdout.read()
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert (first.decode(), rest.decode(), process.returncode) == (FIRST, f"{SECOND}\n", 0)
    assert model.requests[0].body["messages"][-1] == {"role": "user", "content": "Tell me"}


@pytest.mark.promises("stream.as-log")
async def test_the_python_example_prints_the_text_as_it_is_written(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    with home_of(parley_model, tmp_path / "bin") as (home, env):
        example = str(EXAMPLES / "live_text.py")
        await check_live(parley_model, sys.executable, example, env=env, cwd=home.work)


@pytest.mark.long
async def test_the_python_example_reports_a_failed_turn(parley_model: ScriptedModel, tmp_path: Path) -> None:
    parley_model.fails(400, body="no")
    with home_of(parley_model, tmp_path / "bin") as (home, env):
        command = (sys.executable, str(EXAMPLES / "live_text.py"))
        code, out, errors = await output_of(*command, env=env, cwd=home.work, seconds=RUN_SECONDS)

    assert (code, out) == (1, b"")
    assert b"400" in errors
    assert b"Traceback" not in errors


def create_project(project: Path, name: str, modules: Path) -> None:
    project.mkdir()
    (project / "node_modules").symlink_to(modules)
    (project / "package.json").write_text('{"type": "module"}')
    (project / name).write_bytes((EXAMPLES / name).read_bytes())


async def compiled_project(project: Path, name: str) -> Path:
    """Compile an example in a new directory with the SDK, with strict types."""
    modules = await fetched("The TypeScript example", *TYPESCRIPT_SDK)
    create_project(project, name, modules)
    compiler = ("node", str(modules / "typescript" / "bin" / "tsc"), *COMPILER_OPTIONS, name)
    compiled = await output_of(*compiler, env=os.environ, cwd=project, seconds=RUN_SECONDS)
    assert compiled == (0, b"", b"")
    return project


@pytest.mark.long
@pytest.mark.promises("stream.as-log")
async def test_the_typescript_example_prints_the_text_as_it_is_written(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    project = await compiled_project(tmp_path / "project", "live_text.ts")

    with home_of(parley_model, tmp_path / "bin") as (home, env):
        await check_live(parley_model, "node", str(project / "live_text.js"), env=env, cwd=home.work)


@pytest.mark.long
@pytest.mark.parametrize(("answer", "is_made"), [("y", True), ("n", False)])
async def test_the_typescript_example_asks_for_approvals(
    parley_model: ScriptedModel, tmp_path: Path, answer: str, is_made: bool
) -> None:
    project = await compiled_project(tmp_path / "project", "approve.ts")
    arguments = {"command": ["touch", "../made"], "with_escalated_permissions": True, "justification": "needed"}
    parley_model.says(Call("shell", arguments))
    parley_model.says("Finished.")

    with home_of(parley_model, tmp_path / "bin") as (home, env):
        home.write_config('approval_policy = "on-request"\nsandbox_mode = "workspace-write"\n')
        program = ("node", str(project / "approve.js"), "Make it")
        process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE, env=env, cwd=home.work)
        assert process.stdout is not None
        async with asyncio.timeout(RUN_SECONDS):
            question = await process.stdout.readuntil(b"[y/n] ")
            rest, _ = await process.communicate(f"{answer}\n".encode())
        made = (home.work.parent / "made").exists()

    assert (process.returncode, made) == (0, is_made)
    assert b"touch ../made" in question
    assert rest.decode().endswith("Finished.\n")


@pytest.mark.parametrize("name", ["live_text.py", "live_text.ts"])
def test_an_example_can_be_read_at_a_glance(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 35
