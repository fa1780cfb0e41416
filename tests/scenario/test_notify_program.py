"""The notify program: the server starts it after each completed turn, and never waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.clients.codex_calls import EITHER_API, is_event, speaking
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.testing.render import Api


class NotifyProgram:
    """A notify program that writes its arguments and variables to a pipe."""

    def __init__(self, folder: Path, *, first: str = "") -> None:
        self.pipe = folder / "calls"
        self.stdin = ""
        """The stdin of the last call of the program."""
        os.mkfifo(self.pipe)
        program = folder / "notify.py"
        program.write_text(
            f"import json, os, sys\n{first}\ngiven = sys.stdin.read()\n"
            "with open(sys.argv[1], 'w') as calls:\n"
            "    calls.write(json.dumps([sys.argv[2:], dict(os.environ), given]))\n"
        )
        self.config = f"notify = {json.dumps([sys.executable, str(program), str(self.pipe), 'fixed'])}\n"

    async def calls(self) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and variables of the next call."""
        try:
            async with asyncio.timeout(90):
                arguments, variables, self.stdin = json.loads(await asyncio.to_thread(self.pipe.read_text))
        except TimeoutError:
            os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))  # lets the reading thread end
            raise
        return arguments, variables


def _payload(arguments: Sequence[str]) -> Any:
    (fixed, argument) = arguments
    assert fixed == "fixed"
    return json.loads(argument)


def _done(turn_id: str, message: str | None, *inputs: str) -> dict[str, Any]:
    return {
        "type": "agent-turn-complete",
        "turn-id": turn_id,
        "input-messages": list(inputs),
        "last-assistant-message": message,
    }


@pytest.mark.promises("turn.notify")
@pytest.mark.parametrize("api", EITHER_API)
async def test_the_program_runs_after_each_completed_turn(
    parley_model: ScriptedModel, api: Api, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path)
    parley_model.says('One "quoted" 100% ü')
    parley_model.says()
    async with speaking(parley_model, api=api, config=program.config) as wire:
        wire.codex("abc", "first\nline")
        await wire.answer("abc")
        first, _ = await program.calls()
        wire.reply(2, "second")
        await wire.answer(2)
        second, _ = await program.calls()

    assert json.loads(program.stdin) == _payload(second)
    assert _payload(first) == _done("abc", 'One "quoted" 100% ü', "first\nline")
    assert _payload(second) == _done("1", None, "second")


async def test_the_program_starts_in_no_directory_that_commands_write_to(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path, first="os.environ['WHERE'] = os.getcwd()")
    parley_model.says("One")
    async with speaking(parley_model, config=program.config) as wire:
        wire.codex("abc", "first")
        await wire.answer("abc")
        _, variables = await program.calls()

    assert variables["WHERE"] == "/"


async def test_input_that_joined_is_named_as_well(parley_model: ScriptedModel, tmp_path: Path) -> None:
    program = NotifyProgram(tmp_path)
    parley_model.says("One", HOLD)
    parley_model.says("Two")
    async with speaking(parley_model, config=program.config) as wire:
        wire.call(1, "conversationCreate", {"prompt": "", "model": MODEL, "cwd": str(wire.work)})
        (created,) = await wire.answer(1)
        conversation = created["result"]["structuredContent"]["conversation_id"]
        wire.send(2, conversation, "first, ", "in two parts")
        await wire.answer(2)
        await parley_model.wait_until_held()
        wire.send(3, conversation, "second")
        await wire.answer(3)
        parley_model.release()
        arguments, _ = await program.calls()

    assert _payload(arguments) == _done("1", "Two", "first, in two parts", "second")


async def test_the_program_does_not_run_after_failed_or_interrupted_turns(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path)
    parley_model.fails(400)
    parley_model.says("par", HOLD)
    async with speaking(parley_model, config=program.config) as wire:
        wire.codex(1, "fails")
        await wire.answer(1)
        wire.reply(2, "is interrupted")
        await wire.until(is_event("agent_message_delta"))
        wire.cancel(2)
        await wire.answer(2)
        wire.reply(3, "is done")
        await wire.answer(3)
        # if the program had run for the other turns, one of these calls would come first
        arguments, _ = await program.calls()

    assert _payload(arguments) == _done("3", "Done", "is done")


@pytest.mark.promises("turn.notify")
async def test_the_answer_does_not_wait_for_the_program_and_the_server_does_not_either(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path)
    async with speaking(parley_model, config=program.config) as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"  # the program waits until the test opens the pipe
        wire.raw.close_stdin()
        assert await wire.raw.exit_code() == 0
    arguments, _ = await program.calls()

    assert _payload(arguments) == _done("1", "Done", "go")


@pytest.mark.child_process
async def test_the_program_is_not_given_what_looks_like_a_secret(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path)
    env = {"OPENAI_API_KEY": "k", "MY_SECRET": "s", "a_token": "t", "HARMLESS": "h"}
    async with speaking(parley_model, config=program.config, env=env) as wire:
        wire.codex(1, "go")
        await wire.answer(1)
        _, variables = await program.calls()

    assert [name for name in ("OPENAI_API_KEY", "MY_SECRET", "a_token", "HARMLESS") if name in variables] == [
        "HARMLESS"
    ]


async def test_a_notify_program_that_cannot_run_has_no_effect(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        for request_id, program in enumerate((["/no/such/program"], ["/"], [])):
            wire.codex(f"codex {request_id}", "go", config={"notify": program})
            assert await wire.text(f"codex {request_id}") == "Done"
            wire.reply(f"reply {request_id}", "again")
            assert await wire.text(f"reply {request_id}") == "Done"


async def test_output_of_the_notify_program_does_not_reach_the_client(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(
        tmp_path, first="print('not a message', flush=True); print('oops', file=sys.stderr, flush=True)"
    )
    async with speaking(parley_model, config=program.config) as wire:
        wire.codex(1, "go")
        await wire.answer(1)
        await program.calls()
        assert await wire.silence() == []

    assert wire.raw.stderr_text() == ""


@pytest.mark.promises("turn.notify")
async def test_the_payload_may_be_kept_out_of_the_arguments_which_other_users_can_read(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path)
    async with speaking(parley_model, config=f"notify_argument = false\n{program.config}") as wire:
        wire.codex(1, "go")
        await wire.answer(1)
        arguments, _ = await program.calls()

    assert arguments == ["fixed"]
    assert json.loads(program.stdin) == _done("1", "Done", "go")


async def test_a_payload_that_is_too_long_for_an_argument_comes_on_stdin(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path)
    async with speaking(parley_model, config=program.config) as wire:
        wire.codex(1, "x" * 300_000)
        await wire.answer(1)
        arguments, _ = await program.calls()

    assert arguments == ["fixed"]
    assert json.loads(program.stdin) == _done("1", "Done", "x" * 300_000)


async def test_a_program_that_does_not_read_its_stdin_holds_up_nothing(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path, first="sys.stdin.close(); os.close(0); sys.stdin = open(os.devnull)")
    async with speaking(parley_model, config=program.config) as wire:
        wire.codex(1, "x" * 1_000_000)
        assert await wire.text(1) == "Done"
        wire.raw.close_stdin()
        assert await wire.raw.exit_code() == 0
    await program.calls()

    assert program.stdin == ""


@pytest.mark.child_process
async def test_the_program_is_not_given_what_is_configured_as_a_token_or_a_header(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    program = NotifyProgram(tmp_path)
    names = ("MY_BEARER", "MY_PASS", "MY_HEADER", "HARMLESS")
    config = (
        f"{program.config}\n"
        '[mcp_servers.far]\nurl = "http://127.0.0.1:9/mcp"\nbearer_token_env_var = "MY_BEARER"\n'
        '[model_providers.other]\nbase_url = "http://127.0.0.1:9/v1"\nenv_key = "MY_PASS"\n'
        'env_http_headers = { "x-team" = "MY_HEADER" }\n'
    )
    async with speaking(parley_model, config=config, env=dict.fromkeys(names, "v")) as wire:
        wire.codex(1, "go")
        await wire.answer(1)
        _, variables = await program.calls()

    assert [name for name in names if name in variables] == ["HARMLESS"]
