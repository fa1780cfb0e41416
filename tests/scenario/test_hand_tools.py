"""Commands for conversations.

Modules: `parley.cli.exec`, `parley.cli.ls`, `parley.cli.show`, `parley.cli.watch`, `parley.cli.send`,
`parley.cli.answer`, `parley.cli.approval_output`, `parley.cli.interrupt`, `parley.cli.rename`,
`parley.cli.archive`, `parley.cli.delete`, and what they share: `parley.cli.connecting`, `parley.cli.ids`,
`parley.cli.event_output`.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.reading import until_state
from kit.clients.shared_home import ASKS, owner_of
from kit.clients.shell_turns import sh
from kit.servers.command_line import run_on_terminal
from kit.servers.in_process_resident import InProcessResident
from kit.servers.lock_holders import held_by_flock
from kit.servers.patched_program import LONG_CALL
from kit.servers.resident_process import ResidentProcess, outcome_of, parley, start_parley
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.tmux import TMUX, Terminal
from kit.system.waiting import until
from parley.client import Client, Conversation, connect
from parley.common.resident_socket import ask
from parley.common.resident_socket import connect as connect_to_resident
from parley.testing import HOLD, Call, ParleyProcess, ScriptedModel
from parley.testing.home import MODEL, Home

pytestmark = pytest.mark.child_process

ID = "[0-9a-f-]{36}"


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[InProcessResident]:
    async with asyncio.timeout(TIMEOUT_SECONDS), InProcessResident(parley_model, tmp_path / "home") as server:
        yield server


@pytest.fixture
def alone(parley_model: ScriptedModel, tmp_path: Path) -> Any:
    """Return a home without a resident server."""
    home = Home(parley_model, home=tmp_path / "home", config="[mcp]\nresident = true\n")
    home.open()
    yield home
    home.close()


@pytest_asyncio.fixture
async def client(resident: InProcessResident) -> AsyncIterator[Client]:
    async with connect(resident.socket()) as client:
        yield client


async def created(client: Client, resident: InProcessResident) -> Conversation:
    return await client.create(cwd=resident.work, model=MODEL)


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """Return the types of the lines and of the events in them."""
    return [line["msg"]["type"] if line["type"] == "event" else line["type"] for line in found]


# --- exec ----------------------------------------------------------------------------------


async def exec_that_streams(
    model: ScriptedModel, *arguments: str, resident: InProcessResident
) -> tuple[int, str, str]:
    """Run `parley exec`, and release the held reply when the command shows the turn.

    A command that begins to stream after the end of the text gets no deltas.
    """
    process = await start_parley("exec", *arguments, env=resident.environ, cwd=resident.work)
    shown = process.stdout if "--json" in arguments else process.stderr
    assert shown is not None
    seen = b""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while b"> the question" not in seen and b"user_message" not in seen:
            line = await shown.readline()
            assert line, "the command ended without showing the turn"
            seen += line
    await model.wait_until_held()
    model.release()
    code, out, errors = await outcome_of(process)
    return (code, seen.decode() + out, errors) if "--json" in arguments else (code, out, seen.decode() + errors)


async def test_exec_prints_the_answer_on_stdout_and_the_events_on_stderr(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    parley_model.says(HOLD, "The answer, ", "\x1b[31mraw in a pipe.")
    code, out, err = await exec_that_streams(parley_model, "the question", resident=resident)
    (listed,) = (await client.list()).conversations

    assert (code, out) == (0, "The answer, \x1b[31mraw in a pipe.\n")
    assert err.splitlines()[0] == f"parley exec: conversation {listed.conversation_id}"
    assert err.splitlines()[1:] == ["> the question", "The answer, \x1b[31mraw in a pipe."]
    assert listed.cwd == str(resident.work)


async def test_exec_prints_json(resident: InProcessResident, parley_model: ScriptedModel) -> None:
    parley_model.says(HOLD, "The answer.")
    code, out, err = await exec_that_streams(parley_model, "go", "--json", resident=resident)
    found = lines(out)

    assert (code, err) == (0, "")
    assert kinds(found) == [
        *("conversation", "message", "task_started", "user_message"),
        *("agent_message_delta", "agent_message", "task_complete", "result"),
    ]
    assert found[0]["model"] == MODEL
    assert {line["conversation_id"] for line in found} == {found[0]["conversation_id"]}
    delta = found[4]
    assert (delta["offset"], isinstance(delta["item"], str), "seq" in delta) == (0, True, False)
    del found[-1]["conversation_id"]
    assert found[-1] == {"type": "result", "text": "The answer.", "usage": None, "diff": None, "reason": "done"}


async def test_exec_of_a_turn_that_fails_exits_with_1(
    resident: InProcessResident, parley_model: ScriptedModel
) -> None:
    parley_model.fails(400, body="no such model")
    code, out, err = await parley("exec", "go", env=resident.environ)
    parley_model.fails(400, body="no such model")
    as_json = await parley("exec", "go", "--json", env=resident.environ)

    assert (code, out) == (1, "")
    assert "no such model" in err.splitlines()[-3]
    assert as_json[0] == 1
    assert lines(as_json[1])[-1]["reason"] == "failed"
    assert "no such model" in lines(as_json[1])[-1]["error"]


@pytest.mark.parametrize("has_resident", [True, False], ids=["resident", "child process"])
async def test_ctrl_c_interrupts_the_turn_of_exec(
    parley_model: ScriptedModel, tmp_path: Path, has_resident: bool
) -> None:
    parley_model.says("Half, ", HOLD, "never said.")
    async with home_with(parley_model, tmp_path / "home", has_resident=has_resident) as env:
        process = await start_parley("exec", "go", "--json", env=env, cwd=tmp_path)
        await parley_model.wait_until_held()
        process.send_signal(signal.SIGINT)
        code, out, _ = await outcome_of(process)

    assert code == 130
    assert lines(out)[-1]["reason"] == "interrupted"


@asynccontextmanager
async def home_with(model: ScriptedModel, path: Path, *, has_resident: bool) -> AsyncIterator[dict[str, str]]:
    """Yield the environment of a home with or without a resident server."""
    if has_resident:
        async with InProcessResident(model, path) as server:
            yield server.environ
    else:
        home = Home(model, home=path)
        home.open()
        yield home.environ
        home.close()


@pytest.mark.promises("resident.continues")
async def test_the_turn_of_an_exec_that_is_killed_goes_on(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    parley_model.says("Half, ", HOLD, "and whole.")
    process = await start_parley("exec", "go", env=resident.environ)
    await parley_model.wait_until_held()
    process.kill()
    await outcome_of(process)
    parley_model.release()
    (listed,) = (await client.list()).conversations
    conversation = client.conversation(listed.conversation_id)
    await until_state(client, conversation.id, "idle")

    assert (await conversation.read()).events[-1].msg.last_agent_message == "Half, and whole."  # type: ignore[union-attr] # it is a `task_complete`


async def test_exec_says_at_once_that_the_resident_is_lost(parley_model: ScriptedModel, tmp_path: Path) -> None:
    parley_model.says("Hello, ", HOLD)
    async with asyncio.timeout(TIMEOUT_SECONDS), ResidentProcess(parley_model, tmp_path / "home") as resident:
        process = await start_parley("exec", "hi", env=resident.environ, cwd=tmp_path)
        await parley_model.wait_until_held()
        resident.process.kill()
        assert process.stderr is not None
        while line := await process.stderr.readline():
            if b"lost the connection to the resident server; trying to reconnect for 60 s" in line:
                break
        process.kill()
        await process.wait()

    assert line


async def test_exec_without_a_resident_runs_in_a_child_process_and_starts_none(
    alone: Home, parley_model: ScriptedModel
) -> None:
    parley_model.says("The answer.")
    code, out, _ = await parley("exec", "-", "-c", "show_raw_agent_reasoning=true", env=alone.environ)
    empty = (code, out)
    code, out, _ = await parley("exec", "go", env=alone.environ)

    assert empty == (2, "")  # stdin is empty
    assert (code, out) == (0, "The answer.\n")
    assert not (alone.path / "serve.sock").exists()


async def test_exec_starts_a_resident_on_request(alone: Home, parley_model: ScriptedModel) -> None:
    parley_model.says("The answer.")
    try:
        code, out, _ = await parley("exec", "go", "--resident", env=alone.environ)
        with connect_to_resident(str(alone.path)) as channel:
            status = ask(channel, "status")
    finally:
        await parley("serve", "--stop", env=alone.environ)

    assert (code, out) == (0, "The answer.\n")
    assert status["turns"] == 0


async def test_exec_replaces_a_resident_that_is_killed(alone: Home, parley_model: ScriptedModel) -> None:
    parley_model.says("Half, ", HOLD)
    process = await start_parley("exec", "go", "--resident", env=alone.environ)
    try:
        await parley_model.wait_until_held()
        with connect_to_resident(str(alone.path)) as channel:
            os.kill(ask(channel, "status")["pid"], signal.SIGKILL)
        code, _, err = await outcome_of(process)
    finally:
        await parley("serve", "--stop", env=alone.environ)

    assert code == 1
    assert "the resident server was killed; starting another one" in err
    assert "Turn interrupted" in err


async def test_settings_of_the_command_line_apply_to_its_turn(
    resident: InProcessResident, parley_model: ScriptedModel
) -> None:
    parley_model.says("The answer.")
    _, out, _ = await parley("exec", "go", "--json", "-c", "model=another", env=resident.environ)
    code, _, err = await parley("exec", "go", "-c", "nonsense", env=resident.environ)

    assert lines(out)[0]["model"] == "another"
    assert code == 2
    assert "nonsense" in err


# --- ls and show ---------------------------------------------------------------------------


@pytest.mark.promises("list.failed")
async def test_ls_shows_that_the_last_turn_failed(resident: InProcessResident, parley_model: ScriptedModel) -> None:
    parley_model.fails(400)
    code, _, _ = await parley("exec", "a question", env=resident.environ)
    listed = (await parley("ls", env=resident.environ))[1]
    (failed,) = lines((await parley("ls", "--json", env=resident.environ))[1])
    parley_model.says("The answer.")
    await parley("send", failed["conversation_id"], "again", "--follow", env=resident.environ)
    (idle,) = lines((await parley("ls", "--json", env=resident.environ))[1])

    assert (code, listed.split()[1]) == (1, "failed")
    assert [(one["state"], one["failed"]) for one in (failed, idle)] == [("idle", True), ("idle", False)]


async def test_ls_lists_and_show_shows_by_a_beginning_of_the_id(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    first, second = await created(client, resident), await created(client, resident)
    parley_model.says("The answer.")
    await (await first.send("a question")).result()
    listed = (await parley("ls", env=resident.environ))[1].splitlines()
    one = (await parley("ls", "--limit", "1", "--json", env=resident.environ))[1]
    none = await parley("ls", "--archived", env=resident.environ)
    code, shown, _ = await parley("show", first.id[:8].upper(), env=resident.environ)
    events = lines((await parley("show", first.id, "--json", env=resident.environ))[1])

    assert listed[0].startswith(f"{first.id[:8]}  idle ")
    assert listed[0].endswith("  a question")
    assert listed[1].split()[0] == second.id[:8]
    assert [line["conversation_id"] for line in lines(one)] == [first.id]
    assert none == (0, "", "")
    assert code == 0
    assert shown.splitlines()[:2] == [f"{first.id}  idle  a question", f"{MODEL} in {resident.work}"]
    assert shown.splitlines()[2:] == ["> a question", "The answer."]
    assert kinds(events) == ["conversation", "task_started", "user_message", "agent_message", "task_complete"]
    assert [line["seq"] for line in events[1:]] == [event.seq for event in (await first.read()).events]


@pytest.mark.waits
async def test_show_does_not_wait_for_the_write_lock(parley_model: ScriptedModel, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with ResidentProcess(parley_model, home, program=LONG_CALL, arguments=("--no-http",)) as resident:
        async with connect(resident.socket()) as client:
            conversation = await client.create(cwd=tmp_path, model=MODEL)
            parley_model.says("The answer.")
            await (await conversation.send("a question")).result()
        with held_by_flock(home) as held:
            code, shown, errors = await parley("show", conversation.id, env=resident.environ)
            held.release()

    assert (code, "\nThe answer.\n" in shown, errors) == (0, True, "")


async def test_ids_that_fit_none_or_several_are_errors(resident: InProcessResident, client: Client) -> None:
    ids: dict[str, str] = {}
    while (one := (await created(client, resident)).id)[0] not in ids:
        ids[one[0]] = one
    wanted = [
        ("g", "parley show: 'g' is not the id of a conversation; `parley ls` lists them"),
        (f"{one[:-1]}", None),
        (one[0], f"parley show: '{one[0]}' is ambiguous: "),
        ("00000000-0000", "parley show: no conversation has an id that begins with '00000000-0000'"),
    ]
    for given, error in wanted:
        code, _, err = await parley("show", given, env=resident.environ)
        assert (code, err.startswith(error or "")) == (0 if error is None else 1, True), err
    unknown = await parley("show", "00000000-0000-0000-0000-000000000000", env=resident.environ)

    assert unknown[0] == 1


async def test_show_has_two_lines_before_the_events_whatever_the_directory_and_the_model_are(
    resident: InProcessResident, client: Client
) -> None:
    work = Path(resident.work) / "a\nb\x1b[2J"
    work.mkdir()
    conversation = await client.create(cwd=str(work), model="m\nn")
    shown = (await parley("show", conversation.id, env=resident.environ))[1]

    assert shown.splitlines()[1] == f"m\\nn in {resident.work}/a\\nb\\x1b[2J"


async def test_show_has_what_is_being_written(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    parley_model.says("Half, ", HOLD, "and whole.")
    conversation = await created(client, resident)
    turn = await conversation.send("go")
    await parley_model.wait_until_held()
    shown = (await parley("show", conversation.id, env=resident.environ))[1]
    as_json = lines((await parley("show", conversation.id, "--json", env=resident.environ))[1])
    parley_model.release()
    await turn.result()

    assert shown.endswith("> go\nHalf, \n")
    assert (as_json[-1]["type"], as_json[-1]["text"]) == ("open", "Half, ")


async def is_unread(client: Client, conversation: Conversation) -> bool:
    found = (await client.list()).conversations
    return next(one.unread for one in found if one.conversation_id == conversation.id) is True


@pytest.mark.promises("unread.mark")
async def test_what_a_command_has_shown_to_its_end_is_read(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await created(client, resident)
    await (await conversation.send("one")).result()
    _, before, _ = await parley("ls", env=resident.environ)
    assert await is_unread(client, conversation)
    await parley("show", conversation.id, env=resident.environ)
    assert not await is_unread(client, conversation)
    _, after, _ = await parley("ls", env=resident.environ)
    assert [line.partition("idle    ")[2][0] for line in (before, after)] == ["*", " "]

    parley_model.fails(400)
    assert (await parley("send", conversation.id, "two", "--follow", env=resident.environ))[0] == 1
    assert not await is_unread(client, conversation)

    process = await start_parley("watch", conversation.id, "--json", env=resident.environ)
    assert process.stdout is not None
    parley_model.says(HOLD, "three")
    await conversation.send("three")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while b"task_started" not in await process.stdout.readline():
            pass
        await parley_model.wait_until_held()
        parley_model.release()
        await until_state(client, conversation.id, "idle")
        while await is_unread(client, conversation):
            pass  # until the command has marked the conversation as read
    process.send_signal(signal.SIGINT)
    assert (await outcome_of(process))[0] == 130


async def test_ls_and_show_start_no_resident(alone: Home) -> None:
    listed = await parley("ls", env=alone.environ)
    shown = await parley("show", "abc", env=alone.environ)

    assert listed == (0, "", "")
    assert shown[0] == 1
    assert not (alone.path / "serve.sock").exists()


async def test_a_reader_that_closes_the_pipe_gets_no_traceback(resident: InProcessResident, client: Client) -> None:
    await created(client, resident)
    process = await start_parley("ls", env=resident.environ)
    assert process.stdout is not None
    process.stdout._transport.close()  # type: ignore[attr-defined] # closes the pipe
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        err = await process.stderr.read()
        await process.wait()  # otherwise a later test fails with the warning about a process without an end

    assert b"Traceback" not in err


async def test_characters_that_act_on_a_terminal_are_escaped_on_one(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    parley_model.says("\x1b]0;owned\x07 \x9b31m \u202e reversed")
    conversation = await created(client, resident)
    await (await conversation.send("\x1b[2J")).result()
    shown = await run_on_terminal("show", conversation.id, env={**resident.environ, "NO_COLOR": "1"})
    as_json = await run_on_terminal("show", conversation.id, "--json", env=resident.environ)

    for output in (shown, as_json):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(output)
    assert r"\x1b]0;owned\x07 \u009b31m \u202e reversed" in shown
    assert r"\x1b[2J" in shown


# --- watch, send, interrupt ----------------------------------------------------------------


async def test_watch_begins_with_the_running_turn_and_follows(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await created(client, resident)
    parley_model.says("An earlier answer.")
    await (await conversation.send("earlier")).result()
    parley_model.says("Half, ", HOLD, "and whole.")
    turn = await conversation.send("go")
    await parley_model.wait_until_held()
    process = await start_parley("watch", conversation.id[:8], "--json", env=resident.environ)
    assert process.stdout is not None
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while "Half" not in json.dumps(found):
            found.append(json.loads(await process.stdout.readline()))
        parley_model.release()
        await turn.result()
        parley_model.says("The next turn.")
        await conversation.send("again")
        while kinds(found).count("task_complete") < 2:
            found.append(json.loads(await process.stdout.readline()))
    process.send_signal(signal.SIGINT)
    code, _, _ = await outcome_of(process)

    assert code == 130
    assert kinds(found)[0] == "task_started"
    assert "earlier" not in json.dumps(found)
    assert [line["seq"] for line in found if "seq" in line] == [
        event.seq for event in (await conversation.read()).events if event.seq >= found[0]["seq"]
    ]


@TMUX
@pytest.mark.waits
async def test_watch_on_a_terminal_says_that_the_conversation_is_idle(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await created(client, resident)
    command = (sys.executable, "-P", "-m", "parley", "watch", conversation.id[:8])
    async with Terminal(command, env=resident.environ, cwd=Path(resident.work)) as terminal:
        await terminal.until_shows("parley watch: the conversation is idle; waiting for events (Ctrl-C ends)")
        assert "\x1b[2mparley watch: the conversation is idle" in terminal.styled()
        parley_model.says("The answer.")
        await conversation.send("go")
        await terminal.until_shows("The answer.")
        assert terminal.everything().count("idle") == 1


async def test_watch_ends_when_the_conversation_is_deleted(resident: InProcessResident, client: Client) -> None:
    conversation = await created(client, resident)
    process = await start_parley("watch", conversation.id, env=resident.environ)
    await until(lambda: len(resident.resident._clients) == 2)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while process.returncode is None:
            try:
                await conversation.delete()
            except Exception:
                break  # the conversation has already been deleted
    code, _, err = await outcome_of(process)

    assert code == 1
    assert err.startswith("parley watch: ")


async def test_send_returns_when_the_message_is_accepted(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await created(client, resident)
    parley_model.says(HOLD, "The answer.")
    code, out, err = await parley("send", conversation.id[:8], "go", "--json", env=resident.environ)
    (sent,) = lines(out)
    await parley_model.wait_until_held()
    following = await start_parley("send", conversation.id, "and this", "--follow", env=resident.environ)
    await until_messages(conversation, 2)
    parley_model.says("The second answer.")
    parley_model.release()
    followed = await outcome_of(following)

    assert (code, err, sent["type"], sent["conversation_id"]) == (0, "", "message", conversation.id)
    assert followed[0] == 0
    assert followed[1].endswith("The second answer.\n")


async def until_messages(conversation: Conversation, number: int) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            page = await conversation.read()
            if sum(type(event.msg).__name__ == "UserMessage" for event in page.events) >= number:
                return
            await conversation.read(after=page.seq, wait_seconds=1)


async def test_send_without_a_resident_follows_the_turn(alone: Home, parley_model: ScriptedModel) -> None:
    parley_model.says("First.")
    await parley("exec", "go", env=alone.environ)
    listed = lines((await parley("ls", "--json", env=alone.environ))[1])
    parley_model.says("Second.")
    code, out, err = await parley("send", listed[0]["conversation_id"], "more", env=alone.environ)

    assert (code, out) == (0, "Second.\n")
    assert "no resident server runs, so the turn runs in this command until it ends" in err


async def test_send_names_the_process_whose_turn_it_joins(alone: Home, parley_model: ScriptedModel) -> None:
    async with ParleyProcess(parley_model, home=alone.path) as other:
        conversation = await other.create()
        parley_model.says(HOLD, "First.")
        await conversation.send("go")
        await parley_model.wait_until_held()
        parley_model.says("Both.")
        sending = await start_parley("send", conversation.id, "more", env=alone.environ)
        assert sending.stderr is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            note = await sending.stderr.readline()
        pid = await owner_of(conversation)
        parley_model.release()
        code, _, _ = await outcome_of(sending)

    assert (code, note.decode()) == (
        0,
        f"parley send: process {pid} runs the turn, which this command shows until it ends\n",
    )


async def test_interrupt_ends_the_turn_of_any_client(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await created(client, resident)
    idle = await parley("interrupt", conversation.id[:8], env=resident.environ)
    parley_model.says(HOLD, "Never said.")
    await conversation.send("go")
    await parley_model.wait_until_held()
    code, out, err = await parley("interrupt", conversation.id[:8], "--json", env=resident.environ)
    await until_state(client, conversation.id, "idle")

    assert idle == (0, "", "parley interrupt: no turn is running\n")
    assert (code, err) == (0, "")
    assert lines(out) == [{"type": "interrupt", "conversation_id": conversation.id, "was_running": True}]
    assert (await conversation.read()).events[-1].msg.reason == "interrupted"  # type: ignore[union-attr] # it is an `error`


# --- rename, archive, delete ---------------------------------------------------------------


async def test_rename_changes_the_title(resident: InProcessResident, client: Client) -> None:
    conversation = await created(client, resident)
    silent = await parley("rename", conversation.id[:8], "First", env=resident.environ)
    code, out, err = await parley("rename", conversation.id[:8], "Second", "--json", env=resident.environ)

    assert silent == (0, "", "")
    assert (code, err) == (0, "")
    assert lines(out) == [{"type": "rename", "conversation_id": conversation.id, "title": "Second"}]
    assert (await conversation.status()).title == "Second"


async def test_archive_hides_and_restores_a_conversation(resident: InProcessResident, client: Client) -> None:
    conversation = await created(client, resident)
    silent = await parley("archive", conversation.id[:8], env=resident.environ)
    archived = await parley("ls", "--archived", env=resident.environ)
    others = await parley("ls", env=resident.environ)
    code, out, err = await parley("archive", conversation.id[:8], "--undo", "--json", env=resident.environ)
    restored = await parley("ls", env=resident.environ)

    assert silent == (0, "", "")
    assert archived[1].startswith(conversation.id[:8])
    assert others == (0, "", "")
    assert (code, err) == (0, "")
    assert lines(out) == [{"type": "archive", "conversation_id": conversation.id, "archived": False}]
    assert restored[1].startswith(conversation.id[:8])


async def test_delete_without_a_terminal_requires_yes(resident: InProcessResident, client: Client) -> None:
    conversation = await created(client, resident)
    refused = await parley("delete", conversation.id[:8], env=resident.environ)
    before = await client.list()
    code, out, err = await parley("delete", conversation.id[:8], "--yes", "--json", env=resident.environ)

    why = "--yes is required, because stdin is not a terminal; see `parley delete --help`"
    assert refused == (2, "", f"parley delete: {why}\n")
    assert [one.conversation_id for one in before.conversations] == [conversation.id]
    assert (code, err) == (0, "")
    assert lines(out) == [{"type": "delete", "conversation_id": conversation.id}]
    assert (await client.list()).conversations == ()


@pytest.mark.parametrize(("answer", "is_deleted"), [(b"y\n", True), (b"\n", False)], ids=["yes", "enter"])
async def test_delete_on_a_terminal_asks(
    resident: InProcessResident, client: Client, answer: bytes, is_deleted: bool
) -> None:
    conversation = await created(client, resident)
    await conversation.rename("Old \x1b[2Jplan")
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "parley", "delete", conversation.id[:8]),
        env=resident.environ,
        stdin=theirs,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(theirs)
    os.write(ours, answer)
    code, out, err = await outcome_of(process)
    os.close(ours)

    assert (code, out) == (0, "")
    assert err.startswith(f"Delete {conversation.id} (Old ")
    assert "\x1b" not in err
    assert bool((await client.list()).conversations) != is_deleted


async def test_answer_explains_that_an_approval_may_already_be_decided(resident: InProcessResident) -> None:
    code, _, err = await parley("answer", "67e5", "approve", env=resident.environ)

    assert (code, err) == (
        1,
        "parley answer: no open approval has an id that begins with '67e5'; it may already be decided, and "
        "`parley answer` lists the open approvals\n",
    )


# --- answer --------------------------------------------------------------------------------


async def test_answer_lists_and_decides(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    conversation = await client.create(cwd=resident.work, model=MODEL, **ASKS)
    parley_model.says(sh("c1", "touch denied"), sh("c2", "touch approved"))
    parley_model.says("Done.")
    turn = await conversation.send("go")
    await until_state(client, conversation.id, "asking")
    (first,) = await client.approvals()
    assert first.approval_id is not None
    listed = (await parley("answer", env=resident.environ))[1]
    as_json = lines((await parley("answer", "--json", env=resident.environ))[1])
    denied = await parley(
        "answer", first.approval_id[:8], "deny", "--reason", "not now", "--json", env=resident.environ
    )
    again = await parley("answer", first.approval_id, "approve", env=resident.environ)
    await until_asked_again(conversation, first.approval_id)
    (second,) = await client.approvals()
    approved = await parley("answer", str(second.approval_id), "approve", env=resident.environ)
    await turn.result()

    assert listed.startswith(f"{first.approval_id[:8]}  exec, in conversation {conversation.id[:8]}\n    ")
    assert "touch denied" in listed
    assert (as_json[0]["type"], as_json[0]["approval_id"]) == ("approval", first.approval_id)
    assert as_json[0]["command"][-1] == "touch denied"
    assert denied[0] == 0
    assert lines(denied[1]) == [{"type": "answer", "approval_id": first.approval_id, "decision": "denied"}]
    assert again[0] == 1
    assert approved == (0, "", "")
    assert [name for name in os.listdir(resident.work) if name in ("approved", "denied")] == ["approved"]
    assert "not now" in json.dumps([str(event.msg) for event in (await conversation.read()).events])


async def test_answer_shows_the_diff_of_a_patch(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    added = "".join(f"+line {number}\x1b[2J\n" for number in range(100))
    patch = f"*** Begin Patch\n*** Add File: new.txt\n{added}*** End Patch"
    conversation = await client.create(cwd=resident.work, model=MODEL, **ASKS)
    parley_model.says(Call("apply_patch", {"input": patch}))
    parley_model.says("Done.")
    turn = await conversation.send("go")
    await until_state(client, conversation.id, "asking")
    (approval,) = await client.approvals()
    short = str(approval.approval_id)[:8]
    listed = await parley("answer", env=resident.environ)
    whole = await parley("answer", short, env=resident.environ)
    as_json = lines((await parley("answer", short, "--json", env=resident.environ))[1])
    attention = (await parley("attention", env=resident.environ))[1]
    still_open = await client.approvals()
    await parley("answer", short, "deny", env=resident.environ)
    await turn.result()

    title, *action, question = whole[1].splitlines()
    assert title == f"{short}  patch, in conversation {conversation.id[:8]}"
    assert action[0] == f"    add {resident.work}/new.txt"
    assert action[1:] == [f"    +line {number}\\x1b[2J" for number in range(100)]
    assert question == "    Apply these changes?"
    assert (whole[0], whole[2]) == (
        0,
        f"parley answer: to decide: `parley answer {short} approve`, or deny\n",
    )
    assert listed[1].splitlines() == [
        title,
        *action[:40],
        f"    ... 61 more lines; `parley answer {short}` shows all",
        question,
    ]
    assert as_json[0]["approval_id"] == approval.approval_id
    assert "    Apply these changes?\n" in attention
    assert "Codex" not in f"{listed}{whole}{attention}"
    assert len(still_open) == 1


async def until_asked_again(conversation: Conversation, after: str) -> None:
    """Wait for an approval other than this one."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not (status := await conversation.status()).approvals or status.approvals[0].approval_id == after:
            await conversation.read(after=status.seq, wait_seconds=1)


@pytest.mark.parametrize(
    "arguments",
    [("exec", " "), ("exec", "go", "-c", "nonsense"), ("exec", "go", "--cwd", "/missing"), ("send", "1", "")],
)
async def test_wrong_arguments_and_settings_exit_with_2(
    resident: InProcessResident, arguments: tuple[str, ...]
) -> None:
    code, out, err = await parley(*arguments, env=resident.environ)

    assert (code, out, err.count("\n")) == (2, "", 1)


async def test_exec_prints_a_requested_approval_as_json(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    parley_model.says(sh("c1", "touch made-by-command"))
    parley_model.says("Done.")
    overrides = ["-c", "approval_policy=untrusted", "-c", "sandbox_mode=workspace-write"]
    process = await start_parley("exec", "go", "--json", *overrides, env=resident.environ, cwd=resident.work)
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (line := json.loads(await process.stdout.readline()))["type"] != "approval":
            pass
    answered = await parley("answer", line["approval_id"], "abort", env=resident.environ)
    code, _, _ = await outcome_of(process)

    assert line["command"][-1] == "touch made-by-command"
    assert (answered[0], code) == (0, 5)


async def test_an_approval_is_shown_with_the_command_that_answers_it(
    resident: InProcessResident, client: Client, parley_model: ScriptedModel
) -> None:
    parley_model.says(sh("c1", "touch made-by-command"))
    parley_model.says("Done.")
    overrides = ["-c", "approval_policy=untrusted", "-c", "sandbox_mode=workspace-write"]
    process = await start_parley("exec", "go", *overrides, env=resident.environ, cwd=resident.work)
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        before = await process.stderr.readuntil(b"or deny\n")
    (approval,) = await client.approvals()
    await approval.abort()
    code, _, _ = await outcome_of(process)

    short = str(approval.approval_id)[:8]
    assert before.decode().replace(str(resident.work), "PROJECT").splitlines()[-2:] == [
        "  sh -c 'touch made-by-command'  (in PROJECT)",
        f"parley exec: the agent waits for an answer: `parley answer {short} approve`, or deny",
    ]
    assert code == 5


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["abc", "approve", "--reason", "x"], "--reason requires the decision `deny`"),
        (["abc", "yes"], "invalid choice: 'yes'"),
    ],
)
async def test_an_answer_that_is_incomplete_is_a_usage_error(
    tmp_path: Path, arguments: list[str], error: str
) -> None:
    code, out, err = await parley(
        "answer", *arguments, env={"PARLEY_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    )

    assert (code, out) == (2, "")
    assert error in err


async def test_an_answer_without_a_server_finishes_the_turn(alone: Home, parley_model: ScriptedModel) -> None:
    """The process that ran the turn was killed while the turn waited."""
    parley_model.says(sh("c1", "touch made-by-command"))
    overrides = ["-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access"]
    asking = await start_parley("exec", "go", *overrides, env=alone.environ, cwd=alone.work)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not (waiting := lines((await parley("answer", "--json", env=alone.environ))[1])):
            pass
    asking.kill()
    await outcome_of(asking)
    parley_model.says("Done.")
    code, _, err = await parley("answer", waiting[0]["approval_id"], "approve", env=alone.environ, cwd=alone.work)
    shown = (await parley("show", waiting[0]["conversation_id"], env=alone.environ))[1]

    assert code == 0, err
    assert shown.endswith("\nDone.\n")
