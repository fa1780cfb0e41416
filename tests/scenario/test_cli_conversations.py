"""Commands for conversations that continue, copy and review them.

Modules: `parley.cli.continue_`, `parley.cli.fork`, `parley.cli.diff`, `parley.cli.attention`, `parley.cli.replay`,
`parley.cli.history`.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.approving import ASKS_FIRST
from kit.clients.reading import until_state
from kit.clients.shell_turns import sh
from kit.servers.command_line import run_on_terminal
from kit.servers.in_process_resident import InProcessResident
from kit.servers.resident_process import outcome_of, parley, start_parley
from kit.system.commands import TIMEOUT_SECONDS
from parley.cli.main import main
from parley.client import Client, Conversation, TurnFailed, connect
from parley.testing import HOLD, Call, ScriptedModel
from parley.testing.home import MODEL, Home

pytestmark = pytest.mark.child_process


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[InProcessResident]:
    async with asyncio.timeout(TIMEOUT_SECONDS), InProcessResident(parley_model, tmp_path / "home") as server:
        yield server


@pytest_asyncio.fixture
async def client(resident: InProcessResident) -> AsyncIterator[Client]:
    async with connect(resident.socket()) as client:
        yield client


async def created(client: Client, resident: InProcessResident, **options: Any) -> Conversation:
    return await client.create(cwd=resident.work, model=MODEL, **options)


async def interrupted(client: Client, resident: InProcessResident, model: ScriptedModel) -> Conversation:
    """Return a conversation whose last turn was interrupted."""
    conversation = await created(client, resident)
    model.says("Half, ", HOLD)
    turn = await conversation.send("go")
    await model.wait_until_held()
    await conversation.interrupt()
    with pytest.raises(TurnFailed):
        await turn.result()
    return conversation


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


# --- continue --------------------------------------------------------------------------------


async def test_continue_continues_an_interrupted_turn(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await interrupted(client, resident, parley_model)
    short = conversation.id[:6]
    parley_model.says("The rest.")
    code, out, err = await parley("continue", short, "--follow", env=resident.environ)
    again = await parley("continue", short, env=resident.environ)

    assert (code, out) == (0, "The rest.\n"), err
    assert again == (1, "", "parley continue: Nothing to continue\n")


async def test_continue_with_a_resident_ends_when_the_turn_has_begun(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await interrupted(client, resident, parley_model)
    parley_model.says("The rest, ", HOLD)
    code, out, _ = await parley("continue", conversation.id, "--json", env=resident.environ)
    status = await conversation.status()
    running = await parley("continue", conversation.id, env=resident.environ)
    parley_model.release()
    await until_state(client, conversation.id, "idle")

    assert (code, lines(out)) == (0, [{"type": "continue", "conversation_id": conversation.id}])
    assert status.state == "running"
    assert running == (1, "", "parley continue: A turn is running\n")


async def test_continue_without_a_resident_runs_the_turn_in_the_command(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = Home(parley_model, home=tmp_path / "home")
    home.open()
    parley_model.fails(400, body="no such model")
    failed = await parley("exec", "go", "--json", env=home.environ, cwd=tmp_path)
    conversation = lines(failed[1])[0]["conversation_id"]
    parley_model.says("The answer.")
    code, out, err = await parley("continue", conversation[:6], env=home.environ, cwd=tmp_path)
    home.close()

    assert failed[0] == 1
    assert (code, out) == (0, "The answer.\n")
    assert "the turn runs in this command until it ends" in err


# --- fork and diff ---------------------------------------------------------------------------


async def test_fork_copies_the_history_up_to_a_message(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await created(client, resident)
    first = await conversation.send("one")
    await first.result()
    await (await conversation.send("two")).result()
    _, whole, _ = await parley("fork", conversation.id[:6], env=resident.environ)
    _, part, _ = await parley("fork", conversation.id, "--at", first.message_id[:8], "--json", env=resident.environ)
    unknown = await parley("fork", conversation.id, "--at", "zz", env=resident.environ)
    (copy,) = lines(part)
    await (await client.conversation(copy["conversation_id"]).send("three")).result()
    of_part = str(parley_model.requests[-1].body["messages"])
    await (await client.conversation(whole.strip()).send("three")).result()
    of_whole = str(parley_model.requests[-1].body["messages"])

    assert (copy["type"], copy["forked_from"]) == ("fork", conversation.id)
    assert [text in of_part for text in ("'one'", "'two'", "'three'")] == [True, False, True]
    assert [text in of_whole for text in ("'one'", "'two'", "'three'")] == [True, True, True]
    assert unknown == (1, "", "parley fork: no message of the conversation has an id that begins with 'zz'\n")


NOT_SHOWN = "changes by commands are not shown"


def patch(call_id: str, name: str, text: str) -> Call:
    return Call(
        "apply_patch", {"input": f"*** Begin Patch\n*** Add File: {name}\n+{text}\n*** End Patch\n"}, call_id
    )


async def test_diff_prints_the_changes_of_each_turn(
    resident: InProcessResident,
    client: Client,
    parley_model: ScriptedModel,
    capfd: pytest.CaptureFixture[str],
) -> None:
    conversation = await created(client, resident)
    nothing = await parley("diff", conversation.id, env=resident.environ)
    for number in (1, 2):
        parley_model.says(patch(f"a{number}", f"file{number}", "-- text"), patch(f"b{number}", f"b{number}", "b"))
        parley_model.says("Done.")
        await (await conversation.send("go")).result()
    all_turns = await parley("diff", conversation.id[:6], env=resident.environ)
    last = await parley("diff", conversation.id, "--last", "--json", env=resident.environ)
    environ = {**resident.environ, "TERM": "xterm", "NO_COLOR": ""}
    coloured = await run_on_terminal("diff", conversation.id, "--last", env=environ)
    (found,) = lines(last[1])

    names = ("file1", "b1", "file2", "b2")
    assert nothing == (0, "", f"parley diff: no patch of this conversation has changed a file; {NOT_SHOWN}\n")
    assert [all_turns[1].count(f"\n+++ b/{name}\n") for name in names] == [1, 1, 1, 1]
    assert (found["type"], found["conversation_id"]) == ("diff", conversation.id)
    assert all_turns[1].endswith(found["diff"])
    assert [f"+++ b/{name}" in found["diff"] for name in names] == [False, False, True, True]
    assert "\x1b[32m+-- text\x1b[0m" in coloured
    assert "\x1b[1m+++ b/file2\x1b[0m" in coloured
    assert capfd.readouterr().err == f"parley diff: {NOT_SHOWN}\n"
    assert all_turns[2] == ""


# --- attention --------------------------------------------------------------------------------


async def test_attention_lists_what_waits_failed_and_finished(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    empty = await parley("attention", env=resident.environ)
    finished, waiting = await created(client, resident), await created(client, resident, **ASKS_FIRST)
    parley_model.says("All is\nwell.")
    await (await finished.send("look")).result()
    parley_model.says(sh("c1", "touch x"))
    await waiting.send("work\x1b[2J")
    await until_state(client, waiting.id, "asking")
    code, out, _ = await parley("attention", env=resident.environ)
    as_json = await parley("attention", "--json", env=resident.environ)
    (approval,) = await client.approvals()

    rows = [line for line in out.splitlines() if not line.startswith("    ")]
    assert empty == (0, "", "")
    assert code == 0
    assert [row.split()[:2] for row in rows] == [[waiting.id[:8], "waiting"], [finished.id[:8], "finished"]]
    assert "\x1b" not in out
    assert f"    parley answer {str(approval.approval_id)[:8]} approve" in out.splitlines()
    assert out.splitlines()[-1] == "    All is well."
    found = lines(as_json[1])
    assert [(one["type"], one["conversation_id"], one["state"]) for one in found] == [
        ("attention", waiting.id, "waiting"),
        ("attention", finished.id, "finished"),
    ]
    assert found[0]["approval"]["approval_id"] == approval.approval_id


async def test_attention_watch_prints_each_conversation_once_until_ctrl_c(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    first, second = await created(client, resident), await created(client, resident)
    await (await first.send("one")).result()
    process = await start_parley("attention", "--watch", "--json", env=resident.environ)
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        before = json.loads(await process.stdout.readline())
        await (await second.send("two")).result()
        after = json.loads(await process.stdout.readline())
    process.send_signal(signal.SIGINT)
    code, rest, err = await outcome_of(process)

    assert (before["conversation_id"], after["conversation_id"]) == (first.id, second.id)
    assert (code, rest, err) == (130, "", "")


# --- replay -----------------------------------------------------------------------------------


async def test_replay_plays_the_stored_events(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await created(client, resident)
    parley_model.says("One.", sh("c1", "echo two"))
    parley_model.says("Three.")
    await (await conversation.send("go")).result()
    shown = await parley("show", conversation.id, env=resident.environ)
    played = await parley("replay", conversation.id[:6], env=resident.environ)
    as_json = await parley("replay", conversation.id, "--speed", "0", "--json", env=resident.environ)
    found = lines(as_json[1])
    until = found[2]["seq"]
    part = await parley(
        "replay", conversation.id, "--until", str(until), "--json", "--speed", "9", env=resident.environ
    )
    page = await conversation.read(times=True)

    assert played == (0, "".join(shown[1].splitlines(keepends=True)[2:]), "")
    assert [(one["type"], one["seq"], one["at"]) for one in found] == [
        ("event", event.seq, event.at) for event in page.events
    ]
    assert [one["msg"]["type"] for one in found][:3] == ["task_started", "user_message", "agent_message"]
    assert lines(part[1]) == found[:3]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--speed", "-1"], "invalid speed '-1'"),
        (["--speed", "nan"], "invalid speed 'nan'"),
        (["--until", "0"], "invalid position '0'"),
        (["--until", "end"], "invalid position 'end'"),
    ],
)
def test_a_speed_or_a_position_that_cannot_be_used_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], options: list[str], why: str
) -> None:
    code = main(["replay", "67e5", *options])

    assert (code, why in capsys.readouterr().err) == (2, True)
