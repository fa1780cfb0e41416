"""Tests that are made from recorded conversations (`parley.app.recorded_test`, `parley.cli.recorded_test`)."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from kit.clients.codex_calls import speaking
from kit.servers.command_line import environ_of, outcome_of, run_parley
from parley.app.recorded_test import Reply, as_tests
from parley.cli.main import main
from parley.cli.recorded_test import write_test
from parley.cli.runner import CommandFailed
from parley.common.limited_time import limited_time
from parley.conversation.records import CallItem
from parley.models.errors import BadRecording
from parley.models.script import Call as ScriptedCall
from parley.models.script import Step, recorded_call
from parley.testing import Call, Data, Reasoning, ScriptedModel
from parley.wire.ids import CallId

KEY = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"


@pytest.mark.child_process
async def test_a_recorded_conversation_and_a_stored_one_become_tests_that_pass(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    recording, home = tmp_path / "made.jsonl", tmp_path / "home"
    lost = Data(json.dumps({"type": "response.failed", "response": {"error": {"message": "busy"}}}))
    touch = Call("shell", {"command": ["touch", str(tmp_path / "made")]}, "c1")
    parley_model.says(Reasoning("I make it."), "Making", " it.\n", touch)
    parley_model.says('Made "it" with {braces}.', "\u202e")
    parley_model.says("cut", lost)
    parley_model.says(f"Your key is {KEY}.")
    parley_model.fails(400, body="not this")
    config = f'record = "{recording}"'
    async with speaking(parley_model, api="responses", config=config, home=home, stream_max_retries=1) as wire:
        wire.codex(1, "Make it, please!")
        await wire.answer(1)
        wire.reply(2, f"Use {KEY}.")
        await wire.answer(2)
        wire.reply(3, "And this?")
        await wire.answer(3)
    (tmp_path / "made").unlink()

    files = [tmp_path / "test_recorded.py", tmp_path / "test_stored.py"]
    assert write_test(str(recording), str(files[0])) == 0
    printed = await run_parley(home, "replay", "--as-test", wire.sessions[0][:8])
    files[1].write_text(printed.stdout)
    texts = [file.read_text() for file in files]
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environ_of(tmp_path), cwd=tmp_path, stdout=PIPE, stderr=PIPE
    )
    done = await outcome_of(process)

    assert done.exit_code == 0, done.stdout
    assert "2 passed" in done.stdout
    assert not (tmp_path / "made").exists()
    for text in texts:
        assert "async def test_make_it_please(" in text
        assert "assert (await turn.result()).text == 'Making it.\\n\\nMade \"it\" with {braces}.\\u202e'" in text
        assert KEY not in text
        assert "Use ***." in text
    assert "with pytest.raises(TurnFailed):" in texts[0]
    with pytest.raises(CommandFailed, match="already exists; refusing to overwrite"):
        write_test(str(recording), str(files[0]))
    with pytest.raises(BadRecording, match="not a recording"):
        write_test(str(files[0]), None)


@pytest.mark.child_process
async def test_a_stored_conversation_loses_the_secrets_of_every_provider(tmp_path: Path) -> None:
    secret = "hidden-0123456789"
    (tmp_path / "config.toml").write_text(
        'model_provider = "scripted"\n[model_providers.other]\nbase_url = "http://localhost/v1"\n'
        f'query_params = {{ key = "{secret}" }}\n'
    )
    sent = await run_parley(tmp_path, "exec", f"Use {secret}.", "--json")
    conversation = json.loads(sent.stdout.splitlines()[0])["conversation_id"]
    printed = await run_parley(tmp_path, "replay", "--as-test", conversation)

    assert "conversation.send('Use ***.')" in printed.stdout
    assert secret not in printed.stdout


def _reply(message: str, *steps: Step) -> Reply:
    return Reply(message=message, steps=steps)


def _body(*replies: Reply) -> list[str]:
    """Return the statements of the test for a conversation, without its first lines."""
    (test,) = (node for node in ast.parse(as_tests([replies])).body if isinstance(node, ast.AsyncFunctionDef))
    block = test.body[0]
    assert isinstance(block, ast.AsyncWith)
    return [ast.unparse(statement) for statement in (*block.body[1:], *test.body[1:])]


LOOK = Step(call=ScriptedCall(name="look", arguments="{", call_id="c1"))


def test_calls_without_a_reply_get_one() -> None:
    assert _body(_reply("go", LOOK)) == [
        "parley_model.says(Call('look', '{', 'c1'))",
        "parley_model.says('The recording ends here.')",
        "turn = await conversation.send('go')",
        "assert (await turn.result()).text == 'The recording ends here.'",
        "assert len(parley_model.requests) == 2",
    ]


def test_a_repeated_request_counts_once_and_a_paused_reply_is_joined() -> None:
    broken = _reply("go", Step(text="par"), Step(fail="busy"))
    paused = _reply("", Step(text="One"), Step(paused=True))
    assert _body(broken, paused, _reply("", Step(text=" two."))) == [
        "parley_model.says('One', ' two.')",
        "turn = await conversation.send('go')",
        "assert (await turn.result()).text == 'One two.'",
        "assert len(parley_model.requests) == 1",
    ]


def test_only_the_continuations_of_a_paused_reply_are_joined_with_it() -> None:
    paused = _reply("go", Step(text="One"), Step(paused=True))
    broken = _reply("", Step(text="half"), Step(fail="busy"))
    assert _body(paused, broken, _reply("", Step(text=" two."), LOOK), _reply("", Step(text="Done"))) == [
        "parley_model.says('One', ' two.', Call('look', '{', 'c1'))",
        "parley_model.says('Done')",
        "turn = await conversation.send('go')",
        "assert (await turn.result()).text == 'One two.\\nDone'",
        "assert len(parley_model.requests) == 2",
    ]


def test_many_continuations_take_little_time() -> None:
    paused = Step(text="x"), Step(paused=True)
    with limited_time(5):
        text = as_tests([[_reply("go", *paused), *[_reply("", *paused)] * 20_000]])
    assert text.count("            'x',\n") == 20_001


@pytest.mark.parametrize("depth", [1, 20, 21, 400])
def test_arguments_of_any_depth_become_code_that_python_reads(depth: int) -> None:
    arguments: dict[str, Any] = {}
    for level in range(depth - 1):
        arguments = {"a": [arguments] if level % 2 else arguments}
    call = ScriptedCall(name="look", arguments=arguments)
    (says, *_) = _body(_reply("go", Step(call=call)))
    written = eval(says.removeprefix("parley_model.says(").removesuffix(")"), {"Call": Call})

    found = written.arguments
    assert (json.loads(found) if isinstance(found, str) else found) == arguments


def test_deep_arguments_of_a_model_stay_text() -> None:
    deep, flat = '{"a":' * 21 + "1" + "}" * 21, '{"a":' * 20 + "1" + "}" * 20

    assert recorded_call(CallItem(call_id=CallId("c"), name="look", arguments=deep)).arguments == deep
    assert recorded_call(CallItem(call_id=CallId("c"), name="look", arguments=flat)).arguments == json.loads(flat)


def test_a_turn_that_failed_fails_in_the_test() -> None:
    failed = _reply("go", Step(text="par"), Step(fail="busy"))
    assert _body(failed, _reply("again", Step(error="refused"))) == [
        "parley_model.cuts('par', how='end')",
        "turn = await conversation.send('go')",
        "with pytest.raises(TurnFailed):\n    await turn.result()",
        "parley_model.fails(400, body='refused')",
        "turn = await conversation.send('again')",
        "with pytest.raises(TurnFailed):\n    await turn.result()",
        "assert len(parley_model.requests) == 2",
    ]


def test_a_message_that_joined_a_turn_does_not_begin_another() -> None:
    (sent,) = (line for line in _body(_reply("go", LOOK), _reply("more", Step(text="Done"))) if "send" in line)
    assert sent == "turn = await conversation.send('go')"


def test_conversations_with_the_same_message_have_different_names() -> None:
    text = as_tests([[_reply("go", Step(text="a"))], [_reply("go", Step(text="b"))], []])
    assert ("async def test_go(" in text, "async def test_go_2(" in text) == (True, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["x", "-o", "y"], "-o can only be used with --as-test"),
        (["x", "--as-test", "--json"], "--as-test cannot be used with --until, --speed and --json"),
        (["x", "--as-test", "--url", "http://127.0.0.1:1"], "--as-test cannot be used with --url"),
    ],
)
def test_options_that_contradict_each_other_are_errors(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *arguments]) == 2
    assert why in capsys.readouterr().err
