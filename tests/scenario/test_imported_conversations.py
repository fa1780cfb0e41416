"""Continuing an imported conversation: the model gets the same history as in the original conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.builders.rollouts import (
    SESSION,
    SHELL_OUTPUT,
    assistant,
    function_call,
    function_call_output,
    reasoning,
    rollout,
    user,
)
from kit.clients.codex_calls import APIS, EITHER_API, Assistant, CallSent, Output, User, body, is_event, speaking
from kit.servers.command_line import run_parley
from parley.testing import HOLD, ScriptedModel
from parley.testing.render import Api


async def parley(home: Path, *arguments: str) -> str:
    """Run a command, check that it succeeds, and return its output."""
    done = await run_parley(home, *arguments)
    assert done.exit_code == 0, done
    return done.stdout


@pytest.mark.parametrize("api", APIS)
async def test_a_session_of_codex_cli_continues_here(parley_model: ScriptedModel, tmp_path: Path, api: Api) -> None:
    home, file = tmp_path / "home", tmp_path / "rollout-x.jsonl"
    home.mkdir()
    recorded = (user("go"), function_call("c"), function_call_output("c"), assistant("Done"))
    file.write_bytes(b"".join(rollout(*recorded)))
    session = str(SESSION["id"])
    await parley(home, "import", "--cwd", str(tmp_path / "work"), str(file))
    parley_model.says("And more")

    async with speaking(parley_model, api=api, home=home) as wire:
        wire.reply(1, "more", session=session)
        answer = await wire.text(1)

    arguments = '{"command": ["echo", "x"]}'
    items = (
        User("go"),
        CallSent("c", "shell", arguments, item_id=None),
        Output("c", SHELL_OUTPUT),
        Assistant("Done", item_id=None),
        User("more"),
    )
    assert answer == "And more"
    assert [request.body for request in parley_model.requests] == [
        body(api, *items, cwd=tmp_path / "work", session=session)
    ]


async def test_reasoning_goes_back_to_the_provider_as_it_was_recorded(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home, file = tmp_path / "home", tmp_path / "rollout-x.jsonl"
    home.mkdir()
    file.write_bytes(b"".join(rollout(user("go"), reasoning("Hm."), assistant("Done"))))
    await parley(home, "import", "--cwd", str(tmp_path / "work"), str(file))
    parley_model.says("And more")

    async with speaking(parley_model, api="responses", home=home) as wire:
        wire.reply(1, "more", session=str(SESSION["id"]))
        await wire.text(1)

    assert parley_model.requests[0].body["input"][1:3] == [user("go"), reasoning("Hm.")]


@pytest.mark.parametrize("api", EITHER_API)
async def test_a_conversation_continues_in_the_home_that_it_was_imported_into(
    parley_model: ScriptedModel, tmp_path: Path, api: Api
) -> None:
    here, there = tmp_path / "home", tmp_path / "there"
    for home in (here, there):
        home.mkdir()
    parley_model.says("One")
    parley_model.says("Two")
    async with speaking(parley_model, api=api, home=here) as wire:
        wire.codex(1, "first", cwd=str(tmp_path / "work"))
        await wire.answer(1)
        (session,) = wire.sessions
        await parley(here, "export", session, "-o", str(tmp_path / "talk.jsonl"))
    await parley(there, "import", str(tmp_path / "talk.jsonl"))

    async with speaking(parley_model, api=api, home=there) as wire:
        wire.reply(1, "second", session=session)
        await wire.answer(1)

    assert parley_model.requests[1].body == body(
        api, User("first"), Assistant("One"), User("second"), cwd=tmp_path / "work", session=session
    )


async def test_a_turn_that_ran_when_it_was_exported_is_over_where_it_is_imported(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    here, there = tmp_path / "home", tmp_path / "there"
    for home in (here, there):
        home.mkdir()
    parley_model.says("One", HOLD, " and a half")
    parley_model.says("Two")
    async with speaking(parley_model, home=here) as wire:
        wire.codex(1, "first", cwd=str(tmp_path / "work"))
        await wire.until(is_event("agent_message_delta"))
        (session,) = wire.sessions
        await parley(here, "export", session, "-o", str(tmp_path / "talk.jsonl"))
        await parley(there, "import", str(tmp_path / "talk.jsonl"))
        async with speaking(parley_model, home=there) as other:
            other.reply(1, "second", session=session)
            answer = await other.text(1)
        parley_model.release()
        at_home = await wire.text(1)

    assert (answer, at_home) == ("Two", "One and a half")
    assert parley_model.requests[1].body == body(
        "chat", User("first"), User("second"), cwd=tmp_path / "work", session=session
    )
