"""`parley exec`: one turn for a script.

Modules: `parley.cli.exec`, `parley.cli.turn_options`, `parley.cli.turn_follower`, `parley.cli.turn_outcome`,
`parley.cli.messages`, `parley.cli.exit_codes`, `parley.cli.standard_streams`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from kit.builders.images import PNG, as_data_url
from kit.clients.shell_turns import sh
from kit.servers.command_line import Outcome, outcome_of, run_parley, start_parley
from kit.servers.in_process_resident import InProcessResident
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.git import git
from parley.client import connect
from parley.testing import HOLD, ScriptedModel
from parley.testing.steps import Data

pytestmark = pytest.mark.child_process

SETTINGS: Final = """
[profiles.fast]
model = "fast-model"

[limits]
turn_calls = 2
"""
SCHEMA: Final = {"type": "object", "properties": {"risk": {"enum": ["low", "high"]}}, "required": ["risk"]}
ASK: Final = ("--approval", "untrusted")
REFUSAL: Final = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": None}}


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[InProcessResident]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with InProcessResident(parley_model, tmp_path / "home", config=SETTINGS) as resident:
            yield resident


@pytest.fixture
def home(resident: InProcessResident, tmp_path: Path) -> Path:
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


@pytest.mark.promises("settings.model-provider")
async def test_a_model_without_a_provider_keeps_the_provider_of_the_settings(
    parley_model: ScriptedModel, project: Path
) -> None:
    home = project / "new-home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'model = "server/fake-1"\n[model_providers.server]\nbase_url = "{parley_model.base_url}"\n'
    )
    parley_model.says("Hello.")
    done = await run_parley(home, "exec", "hi", "-m", "fake-2", variables={"OPENAI_API_KEY": "key-1"})
    (request,) = parley_model.requests

    assert (done.exit_code, done.stdout) == (0, "Hello.\n"), done.stderr
    assert request.body["model"] == "fake-2"
    assert "authorization" not in request.headers


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
        (["--image", "pipe.png"], "cannot read the image pipe.png: not a regular file"),
        (["--sandbox", "none"], "argument --sandbox: invalid choice: 'none'"),
        (["--approval", "always"], "argument --approval: invalid choice: 'always'"),
        (["--cwd", "missing"], "missing is not a directory"),
        (["--resume", ""], "the id of --resume is empty"),
        (["--profile", "missing"], "missing"),
    ],
)
async def test_an_option_that_cannot_be_used_is_an_error_that_sends_nothing(
    home: Path, project: Path, parley_model: ScriptedModel, options: list[str], why: str
) -> None:
    (project / "text.png").write_text("no image")
    os.mkfifo(project / "pipe.png")
    refused = await run(home, project, "exec", "hi", *options)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert why in refused.stderr
    assert parley_model.requests == []


# --- stdin and stdout ------------------------------------------------------------------------


async def test_only_the_last_message_is_on_stdout(home: Path, project: Path, parley_model: ScriptedModel) -> None:
    for _ in range(3):
        parley_model.says("Let me look.", sh("c1", "true"))
        parley_model.says("All is well.")
    shown = await run(home, project, "exec", "hi")
    quiet = await run(home, project, "exec", "hi", "--quiet")
    as_json = await run(home, project, "exec", "hi", "--json", "-q")

    assert (shown.exit_code, shown.stdout) == (0, "All is well.\n")
    assert "Let me look." in shown.stderr
    assert (quiet.stdout, quiet.stderr) == ("All is well.\n", "")
    assert [(one["type"], one["text"]) for one in objects(as_json)] == [("result", "All is well.")]


@pytest.mark.parametrize(
    ("prompt", "stdin", "message"),
    [
        (["Review this."], b"+ new\n", "Review this.\n\n<stdin>\n+ new\n</stdin>"),
        (["Review this."], b"", "Review this."),
        (["-"], "Grüße\n".encode(), "Grüße\n"),
        ([], b"from a file", "from a file"),
    ],
    ids=["context", "empty", "dash", "no prompt"],
)
async def test_stdin_is_the_message_or_follows_it(
    home: Path, project: Path, parley_model: ScriptedModel, prompt: list[str], stdin: bytes, message: str
) -> None:
    process = await start_parley(home, "exec", *prompt, cwd=project, stdin=PIPE)
    done = await outcome_of(process, stdin)

    assert (done.exit_code, texts(parley_model)) == (0, [message])


@pytest.mark.parametrize(
    ("prompt", "stdin", "why"),
    [
        (["-"], b" \n", "the message is empty"),
        ([], b"", "the message is empty"),
        (["", "--json"], b"", "the message is empty"),
        (["look"], b"\xff\xfe", "stdin is not UTF-8 text"),
        (["look"], b"x" * (32 * 1024 * 1024 + 1), "stdin has more than 32 MiB"),
    ],
)
async def test_a_message_that_cannot_be_sent_is_a_usage_error(
    home: Path, project: Path, prompt: list[str], stdin: bytes, why: str
) -> None:
    refused = await outcome_of(await start_parley(home, "exec", *prompt, cwd=project, stdin=PIPE), stdin)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == f"parley exec: {why}; see `parley exec --help`\n"


async def test_exec_says_that_it_waits_for_stdin_and_ctrl_c_ends_it(home: Path, project: Path) -> None:
    process = await start_parley(home, "exec", "hi", cwd=project, stdin=PIPE)
    note = await line_with(process, "stdin")
    process.send_signal(signal.SIGINT)
    ended = await process.wait()

    assert "if there is none, add </dev/null to the command" in note
    assert ended == 130


async def test_a_reader_that_closes_the_pipe_ends_exec_quietly(
    home: Path, project: Path, parley_model: ScriptedModel
) -> None:
    parley_model.says("One, ", HOLD, "two.")
    read, write = os.pipe()
    process = await start_parley(home, "exec", "hi", "--json", cwd=project, stdout=write)
    os.close(write)
    await parley_model.wait_until_held()
    os.close(read)
    parley_model.release()
    ended = await outcome_of(process)

    assert (ended.exit_code, ended.stderr) == (1, "")


async def test_a_closed_stream_is_no_error_and_gets_no_output_of_the_server(
    parley_model: ScriptedModel, project: Path
) -> None:
    home = project / "new-home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'model = "server/fake-1"\n[model_providers.server]\nbase_url = "{parley_model.base_url}"\n'
    )

    async def run_with(closed: str) -> Outcome:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", f'exec "$0" -P -m parley exec hi {closed}', sys.executable),
            env={**os.environ, "PARLEY_HOME": str(home)},
            cwd=project,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        return await outcome_of(process)

    no_stdout, no_stderr, nothing = await asyncio.gather(*map(run_with, (">&-", "2>&-", "<&- >&- 2>&-")))

    assert (no_stdout.exit_code, no_stdout.stdout) == (0, "")
    assert [line for line in no_stdout.stderr.splitlines() if line.startswith(("Traceback", "Done"))] == ["Done"]
    assert no_stderr == Outcome(stdout="Done\n", stderr="", exit_code=0)
    assert nothing == Outcome(stdout="", stderr="", exit_code=0)


async def line_with(process: Process, text: str) -> str:
    """Return the first line on stderr that contains a text."""
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while text not in (line := (await process.stderr.readline()).decode()):
            assert line, "stderr has ended"
    return line


# --- exit codes --------------------------------------------------------------------------------


async def pipeline(home: Path, project: Path, *arguments: str) -> Process:
    """Start `git diff | parley exec ... | cat` in a shell, which exits with the code of `parley`."""
    git("init", "--quiet", cwd=project)
    (project / "file").write_text("one\n")
    git("add", "file", cwd=project)
    (project / "file").write_text("two\n")
    parley = shlex.join([sys.executable, "-P", "-m", "parley", "exec", "Review this.", *arguments])
    return await asyncio.create_subprocess_exec(
        *("bash", "-c", f"git diff | {parley} | cat; exit ${{PIPESTATUS[1]}}"),
        env={**os.environ, "PARLEY_HOME": str(home)},
        cwd=project,
        stdout=PIPE,
        stderr=PIPE,
    )


async def test_a_pipeline_gets_an_answer_that_matches_its_schema(
    home: Path, project: Path, parley_model: ScriptedModel
) -> None:
    (project / "schema.json").write_text(json.dumps(SCHEMA))
    parley_model.says('{"risk": "low"}')
    done = await outcome_of(await pipeline(home, project, "--output-schema", "schema.json", "-q"))
    parley_model.says('{"risk": "none"}')
    wrong = await outcome_of(await pipeline(home, project, "--output-schema", "schema.json", "-q"))
    (message,) = texts(parley_model)

    assert (done.exit_code, json.loads(done.stdout), done.stderr) == (0, {"risk": "low"}, "")
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    why = 'the answer does not match the schema: $.risk is not one of ["low", "high"]: "none"'
    assert wrong.stderr.splitlines()[0] == f"parley exec: {why}"
    assert message.startswith("Review this.\n\n<stdin>\ndiff --git a/file b/file\n")
    assert parley_model.requests[0].body["response_format"]["json_schema"]["schema"] == SCHEMA


async def test_a_pipeline_sees_that_the_turn_failed(home: Path, project: Path, parley_model: ScriptedModel) -> None:
    parley_model.fails(400, body="no such model")
    failed = await outcome_of(await pipeline(home, project))
    settings = await outcome_of(await pipeline(home, project, "-c", "model=5"))
    parley_model.fails(429, body='{"error": {"type": "usage_limit_reached"}}')
    used_up = await outcome_of(await pipeline(home, project, "-c", "model_provider=responses"))

    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "no such model" in failed.stderr
    assert (settings.exit_code, settings.stdout) == (2, "")
    assert (used_up.exit_code, used_up.stdout) == (3, "")


async def test_a_pipeline_sees_that_a_limit_was_reached(
    home: Path, project: Path, resident: InProcessResident, parley_model: ScriptedModel
) -> None:
    parley_model.says(*(sh(f"c{number}", "true") for number in range(3)))
    process = await pipeline(home, project, "--json")
    async with connect(resident.socket()) as client:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (line := json.loads(await process.stdout.readline()))["type"] != "approval":
                pass
        await client.answer(line["approval_id"], "denied")
    ended = await outcome_of(process)

    assert line["kind"] == "limit"
    assert (ended.exit_code, objects(ended)[-1]["code"]) == (3, "limit_reached")


async def test_a_pipeline_sees_that_the_model_refused(
    home: Path, project: Path, parley_model: ScriptedModel
) -> None:
    parley_model.says("I will", Data(json.dumps(REFUSAL)))
    ended = await outcome_of(await pipeline(home, project, "-c", "model_provider=anthropic", "--json"))

    assert (ended.exit_code, objects(ended)[-1]["code"]) == (4, "model_refused")


@pytest.mark.parametrize(
    ("reason", "exit_code", "code"),
    [
        ("content_filter", 4, "model_refused"),
        pytest.param("sensitive", 4, "model_refused", marks=pytest.mark.long),
        ("length", 3, "cut_off"),
    ],
)
async def test_a_pipeline_sees_that_an_empty_answer_was_cut_off(
    home: Path, project: Path, parley_model: ScriptedModel, reason: str, exit_code: int, code: str
) -> None:
    cut = Data(json.dumps({"choices": [{"delta": {}, "finish_reason": reason}]}))
    parley_model.says(cut)
    ended = await outcome_of(await pipeline(home, project, "--quiet"))
    parley_model.says(sh("c1", "true"))
    parley_model.says(cut)
    as_json = await outcome_of(await pipeline(home, project, "--quiet", "--json"))

    why = f"the answer is empty: the model's reply was cut off: {reason}"
    assert (ended.exit_code, ended.stdout) == (exit_code, "")
    assert ended.stderr.splitlines()[0] == f"parley exec: {why}"
    result = objects(as_json)[-1]
    assert (as_json.exit_code, result["error"], result["code"]) == (exit_code, why, code)


async def test_a_pipeline_sees_that_the_end_of_the_answer_is_missing(
    home: Path, project: Path, parley_model: ScriptedModel
) -> None:
    cut = Data(json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]}))
    parley_model.says("Half", cut)
    half = await outcome_of(await pipeline(home, project, "--quiet"))
    parley_model.says("First", sh("c1", "true"), cut)
    parley_model.says("Whole")
    whole = await outcome_of(await pipeline(home, project, "--quiet"))

    note = "parley exec: The model's reply was cut off: length\n"
    assert (half.exit_code, half.stdout, half.stderr) == (0, "Half\n", note)
    assert (whole.exit_code, whole.stdout, whole.stderr) == (0, "Whole\n", "")


async def test_a_pipeline_sees_that_an_approval_ended_the_turn(
    home: Path, project: Path, parley_model: ScriptedModel
) -> None:
    parley_model.says(sh("c1", "touch x"))
    ended = await outcome_of(await pipeline(home, project, *ASK, "--timeout", "1"))

    assert ended.exit_code == 5
    assert "the turn took longer than 1 s, because an approval was not answered" in ended.stderr


async def test_a_pipeline_sees_that_the_time_is_over_and_how_to_continue(
    home: Path, project: Path, parley_model: ScriptedModel
) -> None:
    parley_model.says("Half, ", HOLD)
    ended = await outcome_of(await pipeline(home, project, "--timeout", "1s"))
    short = ended.stderr.partition("conversation ")[2][:8]
    note = f"parley exec: continue with `parley exec --resume {short} PROMPT` or `parley chat --resume {short}`"

    assert (ended.exit_code, ended.stdout) == (124, "")
    assert ended.stderr.splitlines()[-2:] == ["parley exec: the turn took longer than 1 s", note]


async def test_a_pipeline_sees_that_the_turn_was_interrupted(
    home: Path, project: Path, resident: InProcessResident, parley_model: ScriptedModel
) -> None:
    parley_model.says("Half, ", HOLD)
    process = await pipeline(home, project)
    await parley_model.wait_until_held()
    async with connect(resident.socket()) as client:
        (running,) = (await client.list()).conversations
        await client.conversation(running.conversation_id).interrupt()
    ended = await outcome_of(process)

    assert (ended.exit_code, ended.stdout) == (130, "")
    assert f"`parley exec --resume {running.conversation_id[:8]} PROMPT`" in ended.stderr.splitlines()[-1]


async def test_the_first_ctrl_c_interrupts_the_turn_and_says_how_to_continue(
    home: Path, project: Path, parley_model: ScriptedModel
) -> None:
    parley_model.says("Half, ", HOLD)
    process = await start_parley(home, "exec", "hi", "--cwd", str(project))
    await parley_model.wait_until_held()
    process.send_signal(signal.SIGINT)
    ended = await outcome_of(process)
    short = ended.stderr.partition("conversation ")[2][:8]
    again = await run(home, project, "exec", "again", "--resume", short)

    assert (ended.exit_code, ended.stdout) == (130, "")
    assert f"`parley exec --resume {short} PROMPT`" in ended.stderr.splitlines()[-1]
    assert (again.exit_code, again.stdout) == (0, "Done\n")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--timeout", "0"], "invalid time '0'"),
        (["--timeout", "soon"], "invalid time 'soon'"),
        (["--output-schema", "missing.json"], "cannot read the schema missing.json: No such file"),
        (["--output-schema", "text.json"], "the schema text.json is not valid JSON"),
        (["--output-schema", "surrogate.json"], "the schema surrogate.json is not valid JSON"),
        (["--output-schema", "/dev/zero"], "the schema /dev/zero has more than 1 MiB"),
        (["--output-schema", "pipe.json"], "cannot read the schema pipe.json: the pipe did not end within 10 s"),
        (["--output-schema", "list.json"], "the schema list.json must be a JSON object that is not empty"),
        (["--output-schema", "type.json"], "the schema type.json is invalid: $.type is not one of null, boolean, "),
    ],
)
async def test_a_time_or_a_schema_that_cannot_be_used_is_a_usage_error(
    home: Path, project: Path, parley_model: ScriptedModel, options: list[str], why: str
) -> None:
    (project / "text.json").write_text("{")
    (project / "surrogate.json").write_text('{"title": "\\ud800"}')
    (project / "list.json").write_text("[]")
    (project / "type.json").write_text('{"type": "text"}')
    os.mkfifo(project / "pipe.json")
    refused = await run(home, project, "exec", "hi", *options)

    assert (refused.exit_code, why in refused.stderr, parley_model.requests) == (2, True, [])
