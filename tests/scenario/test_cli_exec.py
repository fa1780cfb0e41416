"""`parley exec`: one turn for a script (`parley.cli.exec`, `parley.cli.turn_options`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.builders.images import PNG, as_data_url
from kit.servers.command_line import Outcome, outcome_of, run_parley, start_parley
from kit.servers.resident_process import ResidentProcess
from parley.testing import ScriptedModel

pytestmark = pytest.mark.child_process

PROFILE = '[profiles.fast]\nmodel = "fast-model"\n'


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[ResidentProcess]:
    async with ResidentProcess(parley_model, tmp_path / "home", config=PROFILE) as resident:
        yield resident


@pytest.fixture
def home(resident: ResidentProcess, tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


async def run(home: Path, cwd: Path, *arguments: str) -> Outcome:
    return await outcome_of(await start_parley(home, *arguments, cwd=cwd))


def objects(outcome: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def created(outcome: Outcome) -> str:
    return str(next(one for one in objects(outcome) if one["type"] == "conversation")["conversation_id"])


def texts(model: ScriptedModel) -> list[Any]:
    """Return the messages of the user in the last request, without the description of the environment."""
    messages = [one["content"] for one in model.requests[-1].body["messages"] if one["role"] == "user"]
    return [one for one in messages if "<environment_context>" not in str(one)]


# --- the conversation ------------------------------------------------------------------------


async def test_continue_takes_the_last_conversation_of_the_directory_and_resume_any(
    home: Path, project: Path, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    first = await run(home, project, "exec", "one", "--json")
    await run(home, other, "exec", "two")
    continued = await run(home, project, "exec", "three", "--continue")
    of_project = texts(parley_model)
    resumed = await run(home, other, "exec", "four", "--resume", created(first)[:6], "--json")

    assert (continued.exit_code, continued.stdout) == (0, "Done\n")
    assert of_project == ["one", "three"]
    assert texts(parley_model) == ["one", "three", "four"]
    assert created(resumed) == created(first)


async def test_nothing_to_continue_or_resume_is_an_error_that_creates_nothing(home: Path, project: Path) -> None:
    no_latest = await run(home, project, "exec", "hi", "--continue")
    no_id = await run(home, project, "exec", "hi", "--resume", "abcd")
    both = await run(home, project, "exec", "hi", "--resume", "abcd", "--continue")
    listed = await run(home, project, "ls")

    assert (no_latest.exit_code, no_id.exit_code, both.exit_code) == (1, 1, 2)
    assert f"there is no conversation in {project} to continue" in no_latest.stderr
    assert "no conversation has an id that begins with 'abcd'" in no_id.stderr
    assert "not allowed with argument" in both.stderr
    assert listed.stdout == ""


# --- settings -----------------------------------------------------------------------------------


async def test_the_settings_apply_to_new_and_to_continued_conversations(
    home: Path, project: Path, parley_model: ScriptedModel
) -> None:
    chosen = ("--sandbox", "read-only", "--approval", "never")
    await run(home, project, "exec", "one", "-m", "my-model", *chosen)
    environments = str(parley_model.requests[-1].body["messages"])
    await run(home, project, "exec", "two", "--continue", "--profile", "fast")
    await run(home, project, "exec", "three", "--continue", "--model", "third")

    assert [request.body["model"] for request in parley_model.requests] == ["my-model", "fast-model", "third"]
    assert "read-only" in environments


async def test_a_ready_provider_needs_only_its_key(parley_model: ScriptedModel, project: Path) -> None:
    home = project / "new-home"
    home.mkdir()
    parley_model.says("Hello.")
    variables = {
        "AZURE_OPENAI_ENDPOINT": parley_model.base_url.removesuffix("/v1"),
        "AZURE_OPENAI_API_KEY": "key-1",
    }
    done = await run_parley(home, "exec", "hi", "-m", "azure/my-deployment", variables=variables)
    (request,) = parley_model.requests

    assert (done.exit_code, done.stdout) == (0, "Hello.\n"), done.stderr
    assert (request.body["model"], request.headers["authorization"]) == ("my-deployment", "Bearer key-1")


async def test_images_are_attached(home: Path, project: Path, parley_model: ScriptedModel) -> None:
    (project / "one.png").write_bytes(PNG)
    await run(home, project, "exec", "look", "--image", "one.png", "--image", str(project / "one.png"))
    (content,) = texts(parley_model)

    assert [part.get("text") for part in content] == ["look", None, None]
    assert [part["image_url"]["url"] for part in content[1:]] == [as_data_url("image/png", PNG)] * 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--image", "missing.png"], "cannot read the image missing.png: No such file or directory"),
        (["--image", "text.png"], "the image text.png cannot be used: not a PNG, JPEG, GIF or WebP image"),
        (["--image", "."], "cannot read the image .: Is a directory"),
        (["--sandbox", "none"], "argument --sandbox: invalid choice: 'none'"),
        (["--approval", "always"], "argument --approval: invalid choice: 'always'"),
        (["--cwd", "missing"], "missing is not a directory"),
        (["--profile", "missing"], "missing"),
    ],
)
async def test_an_option_that_cannot_be_used_is_an_error_that_sends_nothing(
    home: Path, project: Path, parley_model: ScriptedModel, options: list[str], why: str
) -> None:
    (project / "text.png").write_text("no image")
    refused = await run(home, project, "exec", "hi", *options)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert why in refused.stderr
    assert parley_model.requests == []
