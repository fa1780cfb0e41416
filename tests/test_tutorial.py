"""The tutorial shows what a terminal really shows, in this repository and in a fresh clone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from kit.system.console_page import run_page
from parley.testing import Call, ScriptedModel

ROOT: Final = Path(__file__).parents[1]
TUTORIAL: Final = (ROOT / "docs/tutorial.md").read_text()

PATCH: Final = (
    "*** Begin Patch\n*** Update File: prices.py\n@@\n-    return price - percent\n"
    "+    return price * (100 - percent) / 100\n*** End Patch\n"
)


def environment(home: Path, model: ScriptedModel) -> dict[str, str]:
    """Return the variables of a new user whose provider OpenAI is the scripted model."""
    home.mkdir()
    return {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "OPENAI_BASE_URL": f"{model.base_url}",
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.com",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.com",
    }


def prepare(model: ScriptedModel) -> None:
    """Queue the replies of the last part, in which the reader uses a real model."""
    model.says(Call("apply_patch", {"input": PATCH}))
    model.says("Corrected.")
    model.says("Added.")


def check_requests(model: ScriptedModel, codes: list[tuple[str, int]]) -> None:
    assert [command for command, code in codes if code != 0] == []
    assert [request.headers["authorization"] for request in model.requests] == ["Bearer sk-..."] * 3
    assert "Success. Updated the following files" in str(model.requests[1].body)


@pytest.mark.waits
async def test_the_tutorial_shows_what_happens(tmp_path: Path) -> None:
    bin_directory = str(Path(sys.executable).parent)
    async with ScriptedModel() as model:
        prepare(model)
        env = environment(tmp_path / "home", model)
        env["PATH"] = f"{bin_directory}:{env['PATH']}"

        codes = await asyncio.to_thread(
            run_page,
            TUTORIAL,
            cwd=ROOT,
            env=env,
            replaced={"make setup": "true", 'export PATH="$PWD/.venv/bin:$PATH"': "true"},
        )

    check_requests(model, codes)
    assert list((tmp_path / "home").glob("parley-*")) == []


@pytest.mark.long
async def test_the_tutorial_works_in_a_fresh_clone(tmp_path: Path) -> None:
    clone = fresh_clone(tmp_path / "parley")
    async with ScriptedModel() as model:
        prepare(model)
        env = environment(tmp_path / "home", model)

        codes = await asyncio.to_thread(run_page, (clone / "docs/tutorial.md").read_text(), cwd=clone, env=env)

    check_requests(model, codes)
    program = (clone / ".venv/bin/parley").read_text().splitlines()[0]
    assert program == f"#!{clone}/.venv/bin/python"


def fresh_clone(directory: Path) -> Path:
    """Clone the repository, and create a virtual environment with the dependencies, so that nothing is downloaded.

    The environment does not contain Parley itself.
    """
    subprocess.run(["git", "clone", "-q", ROOT, directory], check=True, timeout=TIMEOUT_SECONDS)
    venv = directory / ".venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=TIMEOUT_SECONDS)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (venv / "locked").touch()
    return directory
