"""The resident server and its relays (`parley.app.relay`): turns without their client, and `parley serve`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.reading import until_state
from kit.clients.requests import request, tool
from kit.clients.shared_home import ASKS, Start, events_until, is_, owner_of
from kit.clients.shell_turns import sh
from kit.servers.on_terminal import ON_TERMINAL
from kit.servers.patched_program import LONG_GRACE
from kit.servers.resident_process import ResidentProcess, parley
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.needs import LANDLOCK
from kit.system.waiting import until
from parley.app.discovery import ResidentLock, is_running
from parley.cli.main import main
from parley.client import Approval, Conversation
from parley.common.resident_socket import NoResident, ask, connect
from parley.testing import HOLD, Call, ParleyProcess, ScriptedModel
from parley.testing.home import MODEL, Home
from parley.version import __version__
from parley.wire.events import AgentMessageDelta, ErrorEvent, ExecCommandEnd, TaskComplete

NOBODY = 65534
THIRD_PARTY = {name for name, found in packages_distributions().items() if found != ["parley-server"]}
"""The modules of all installed packages except Parley."""
TOOL_SERVER = Path(__file__).parents[1] / "kit/servers/tool_server.py"

pytestmark = pytest.mark.child_process


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, home: Path) -> AsyncIterator[ResidentProcess]:
    async with ResidentProcess(parley_model, home) as server:
        yield server


def the_same(conversation: Conversation, process: ParleyProcess) -> Conversation:
    """Return the conversation as a handle of the client of another process."""
    return process.client.conversation(conversation.id)


async def last_event(conversation: Conversation) -> object:
    return (await conversation.read()).events[-1].msg


def asked(home: Path, kind: str) -> dict[str, Any]:
    with connect(str(home)) as channel:
        return ask(channel, kind)


# --- turns without their client ------------------------------------------------------------


@pytest.mark.promises("resident.continues")
async def test_a_turn_goes_on_when_its_client_is_killed_and_another_client_watches_it(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    editor, watcher = await start(), await start()
    conversation = await editor.create()
    parley_model.says("The first half, ", HOLD, "the second half.")
    await conversation.send("go")
    await parley_model.wait_until_held()
    async with watcher.client.conversation(conversation.id).stream() as stream:
        await events_until(stream, is_(AgentMessageDelta))
        editor.kill()
        await editor.exit_code()
        parley_model.release()
        events = await events_until(stream, is_(TaskComplete))

    assert events[-1] == TaskComplete(last_agent_message="The first half, the second half.")


@pytest.mark.promises("resident.continues", "resident.started")
async def test_a_turn_goes_on_when_the_process_group_of_the_editor_that_started_the_resident_is_killed(
    parley_model: ScriptedModel, start: Start, home: Path
) -> None:
    files = Home(parley_model, home=home)
    files.open()
    parley_model.says("The first half, ", HOLD, "the second half.")
    given = {"prompt": "", "model": MODEL, "cwd": str(files.work)}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    try:
        editor = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", '"$0" -P -m parley mcp --resident; exit', sys.executable),
            env=files.environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert editor.stdin is not None
        assert editor.stdout is not None
        editor.stdin.write(json.dumps(request(1, "initialize", hello)).encode() + b"\n")
        editor.stdin.write(json.dumps(tool(2, "conversationCreate", given)).encode() + b"\n")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            _, created = [json.loads(await editor.stdout.readline()) for _ in range(2)]
        conversation_id = created["result"]["structuredContent"]["conversation_id"]
        content = [{"type": "text", "text": "go"}]
        sending = tool(3, "conversationSendMessage", {"conversation_id": conversation_id, "content": content})
        editor.stdin.write(json.dumps(sending).encode() + b"\n")
        await parley_model.wait_until_held()
        os.killpg(editor.pid, signal.SIGKILL)
        await editor.wait()
        watcher = await start()
        async with watcher.client.conversation(conversation_id).stream() as stream:
            parley_model.release()
            events = await events_until(stream, is_(TaskComplete))
    finally:
        asked(home, "stop")
        files.close()

    assert events[-1] == TaskComplete(last_agent_message="The first half, the second half.")


@pytest.mark.promises("resident.continues")
async def test_the_end_of_stdin_ends_the_relay_and_not_the_turn(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    editor = await start()
    conversation = await editor.create()
    parley_model.says(HOLD, "Done.")
    await conversation.send("go")
    await parley_model.wait_until_held()
    editor.close_stdin()
    code = await editor.exit_code()

    again = await start()
    running = await again.client.conversation(conversation.id).status()
    parley_model.release()
    async with again.client.conversation(conversation.id).stream() as stream:
        await events_until(stream, is_(TaskComplete))

    assert (code, running.state) == (0, "running")


@pytest.mark.promises("resident.questions")
async def test_an_approval_waits_for_the_next_client(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    editor = await start()
    conversation = await editor.create(**ASKS)
    parley_model.says(sh("c1", "touch made-by-command"))
    parley_model.says("Done.")
    await conversation.send("go")
    await until_state(editor.client, conversation.id, "asking")
    editor.kill()
    await editor.exit_code()

    again = await start()
    (approval,) = (await the_same(conversation, again).status()).approvals
    await again.client.answer(approval.approval_id, "approved")
    await until_state(again.client, conversation.id, "idle")

    assert (again.work / "made-by-command").exists()


@pytest.mark.promises("approvals.when-nobody")
async def test_another_client_of_the_resident_has_time_to_follow_a_call_and_be_asked(
    parley_model: ScriptedModel, home: Path, start: Start
) -> None:
    parley_model.says(sh("c1", "touch made-by-command"))
    async with ResidentProcess(parley_model, home, program=LONG_GRACE):
        caller, other = await start(), await start(on_approval=Approval.approve)
        calling = caller.client.codex("go", cwd=str(caller.work), **ASKS)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not (asking := (await other.client.list(state="asking")).conversations):
                pass
        async with other.client.conversation(asking[0].conversation_id).stream():
            await calling

    assert (caller.work / "made-by-command").exists()


@pytest.mark.promises("resident.when-client-leaves")
async def test_with_interrupt_a_turn_ends_with_the_client_that_began_it(
    parley_model: ScriptedModel, home: Path, start: Start
) -> None:
    config = '[mcp]\nwhen_client_leaves = "interrupt"\n'
    async with ResidentProcess(parley_model, home, config=config):
        editor, watcher = await start(config=config), await start(config=config)
        conversation = await editor.create()
        parley_model.says(HOLD, "Never said.")
        await conversation.send("go")
        await parley_model.wait_until_held()
        watched = the_same(conversation, watcher)
        editor.kill()
        await until_state(watcher.client, conversation.id, "idle")
        end = await last_event(watched)

    assert end == ErrorEvent(message=" Turn interrupted", reason="interrupted", principal="local")


# --- relays --------------------------------------------------------------------------------


@pytest.mark.promises("resident.relay")
async def test_the_relay_carries_every_byte_and_runs_no_turn(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    relayed = await start()
    conversation = await relayed.create()
    parley_model.says("x" * 300_000, HOLD)
    async with conversation.stream() as stream:
        await conversation.send("go")
        await parley_model.wait_until_held()
        running_in = await owner_of(conversation)
        parley_model.release()
        events = await events_until(stream, is_(TaskComplete))

    assert running_in == resident.process.pid != relayed.pid
    assert events[-1] == TaskComplete(last_agent_message="x" * 300_000)


@pytest.mark.promises("resident.relay")
async def test_the_relay_imports_only_the_standard_library_and_few_modules(resident: ResidentProcess) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    relay = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "importtime", "-P", "-m", "parley", "mcp"),
        env=resident.environ,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await relay.communicate(json.dumps(request(1, "initialize", hello)).encode() + b"\n")
    imported = [line.rpartition("|")[2].strip() for line in err.decode().splitlines() if "import time:" in line]
    packages = {name.partition(".")[0] for name in imported} - {"_distutils_hack"}  # imported by the interpreter

    assert json.loads(out)["result"]["serverInfo"]["name"] == "parley"
    assert "parley.app.relay" in imported
    assert not [name for name in packages - {"parley"} if name in THIRD_PARTY]
    assert not packages & {"asyncio", "argparse", "logging"}


@pytest.mark.promises("resident.settings", "servers.shared")
async def test_clients_share_a_tool_server_only_if_their_environments_are_the_same(
    parley_model: ScriptedModel, home: Path, start: Start
) -> None:
    tool_server = f'[mcp_servers.x]\ncommand = "{sys.executable}"\nargs = ["-P", "{TOOL_SERVER}", "serve"]\n'
    async with ResidentProcess(parley_model, home, config=tool_server):
        pids = []
        for timezone in ("UTC", "UTC", "CET"):
            client = await start(env={"TZ": timezone}, config=tool_server)
            parley_model.says(Call("x__pid", {}, call_id="c1"))
            parley_model.says("Done.")
            await (await (await client.create()).send("go")).result()
            output = next(one for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool")
            pids.append(output["content"])

    assert pids[0] == pids[1] != pids[2]


@pytest.mark.promises("resident.settings")
async def test_a_turn_has_the_environment_directory_and_overrides_of_the_client_that_began_it(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    settings = ["-c", "shell_environment_policy.inherit=all"]
    first = await start(env={"MARK": "of the first"}, arguments=settings)
    second = await start(env={"MARK": "of the second"}, arguments=settings)
    conversation = await first.create()
    for client in (first, second):
        parley_model.says(sh("c1", "echo $MARK"))
        parley_model.says("Done.")
        await (await the_same(conversation, client).send("go")).result()
    page = await conversation.read()
    outputs = [event.msg.stdout for event in page.events if isinstance(event.msg, ExecCommandEnd)]

    assert outputs == ["of the first\n", "of the second\n"]


@pytest.mark.promises("queue.settings")
async def test_a_queued_message_has_the_environment_of_the_resident(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    settings = ["-c", "shell_environment_policy.inherit=all"]
    client = await start(env={"MARK": "of the relay"}, arguments=settings)
    conversation = await client.create(config={"shell_environment_policy.inherit": "all"})
    parley_model.says(HOLD, sh("c1", "echo ${MARK-none}"))
    parley_model.says("Done.")
    parley_model.says(sh("c2", "echo ${MARK-none}"))
    parley_model.says("Done.")
    async with conversation.stream() as stream:
        await conversation.send("begins a turn")
        await parley_model.wait_until_held()
        waiting = {"conversation_id": conversation.id, "content": [{"type": "text", "text": "waits"}]}
        await client.client.call_tool("conversationSendMessage", {**waiting, "delivery": "queue"})
        parley_model.release()
        for _ in ("begins a turn", "waits"):
            await stream.turn()
    page = await conversation.read()
    outputs = [event.msg.stdout for event in page.events if isinstance(event.msg, ExecCommandEnd)]

    assert outputs == ["of the relay\n", "none\n"]


@pytest.mark.promises("resident.settings")
async def test_the_environment_of_a_client_is_not_stored(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    client = await start(env={"SOME_VARIABLE": "its own value"})
    parley_model.says("Done.")
    await (await (await client.create()).send("go")).result()
    asked(client.home, "stop")
    await resident.process.wait()
    stored = b"".join(path.read_bytes() for path in client.home.rglob("*") if path.is_file())

    assert b"its own value" not in stored
    assert "its own value" not in resident.stderr_text()


@pytest.mark.promises("resident.in-process")
async def test_in_process_and_ephemeral_servers_do_not_use_the_resident(
    resident: ResidentProcess, start: Start
) -> None:
    alone, ephemeral = await start(arguments=["--in-process"]), await start(arguments=["--ephemeral"])

    assert asked(alone.home, "status")["clients"] == 0
    for process in (alone, ephemeral):
        await process.create()


@pytest.mark.promises("resident.crash")
async def test_when_the_resident_is_killed_the_relay_exits_and_the_next_client_recovers_the_turn(
    parley_model: ScriptedModel, home: Path, start: Start
) -> None:
    async with ResidentProcess(parley_model, home) as resident:
        editor = await start()
        conversation = await editor.create()
        parley_model.says(HOLD, "Never said.")
        await conversation.send("go")
        await parley_model.wait_until_held()
        resident.process.kill()
        code = await editor.exit_code()
    again = await start()
    await until_state(again.client, conversation.id, "idle")
    end = await last_event(the_same(conversation, again))

    assert code == 1
    assert "the resident server has ended" in editor.stderr_text()
    assert isinstance(end, ErrorEvent)
    assert end.reason == "restarted"


@pytest.mark.promises("resident.relay")
async def test_a_relay_on_sigterm_exits_with_0_and_the_turn_goes_on(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    editor = await start()
    conversation = await editor.create()
    parley_model.says(HOLD, "Done.")
    await conversation.send("go")
    await parley_model.wait_until_held()
    editor.terminate()
    code = await editor.exit_code()
    again = await start()
    status = await again.client.conversation(conversation.id).status()
    parley_model.release()

    assert (code, status.state) == (0, "running")


@pytest.mark.promises("resident.terminal")
async def test_on_a_terminal_sigint_interrupts_the_turns_of_the_client_or_ends_the_relay(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start
) -> None:
    typing, other = await start(program=ON_TERMINAL), await start()
    conversation, untouched = await typing.create(), await other.create()
    parley_model.says(HOLD, "Never said.")
    await conversation.send("go")
    await parley_model.wait_until_held()
    parley_model.says(HOLD, "Said.")
    await untouched.send("go")
    await until(lambda: len(parley_model.requests) == 2)
    os.kill(typing.pid, signal.SIGINT)
    await until_state(typing.client, conversation.id, "idle")
    os.kill(typing.pid, signal.SIGINT)
    code = await typing.exit_code()
    state = (await untouched.status()).state
    parley_model.release()

    assert await last_event(the_same(conversation, other)) == ErrorEvent(
        message=" Turn interrupted", reason="interrupted", principal="local"
    )
    assert (code, state) == (0, "running")


@pytest.mark.promises("resident.relay")
async def test_a_client_that_only_stops_sending_gets_its_answers(
    resident: ResidentProcess, parley_model: ScriptedModel, home: Path
) -> None:
    asked = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "parley", "mcp"),
        env=resident.environ,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, _ = await process.communicate(asked)

    assert (process.returncode, json.loads(out)) == (0, {"jsonrpc": "2.0", "id": 1, "result": {}})


# --- the socket ----------------------------------------------------------------------------


@pytest.mark.promises("resident.socket")
async def test_an_ordinary_client_can_use_the_socket_itself(resident: ResidentProcess, home: Path) -> None:
    with connect(str(home)) as channel:
        channel.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        answer = await asyncio.to_thread(channel.recv, 4096)

    assert json.loads(answer) == {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.mark.promises("resident.socket")
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"parley": "relay", "v": 2}, "version 2"),
        ({"parley": "relay", "v": 1, "env": ["PATH"]}, "has invalid members"),
        ({"parley": "relay", "v": 1, "overrides": ["nonsense"]}, "key=value"),
        ({"parley": "relay", "v": 1, "cwd": "/\ud800"}, "`cwd` is not"),
        ({"parley": "relay", "v": 1, "installed": ["relative"]}, "`installed` is not"),
        ({"parley": "relay", "v": 1, "installed": ["/" + "x" * 4096]}, "`installed` is not"),
        ({"parley": "relay", "v": 1, "installed": [f"/{n}" for n in range(300)]}, "too many"),
        ({"parley": "dance", "v": 1}, "'dance'"),
        ({"parley": None}, "has invalid members"),
    ],
)
async def test_a_wrong_line_of_our_own_is_refused_with_a_reason(
    resident: ResidentProcess, home: Path, line: dict[str, Any], reason: str
) -> None:
    with connect(str(home)) as channel:
        channel.sendall(json.dumps(line).encode() + b"\n")
        answer = json.loads(await asyncio.to_thread(channel.recv, 4096))
        rest = await asyncio.to_thread(channel.recv, 4096)

    assert (answer["ok"], rest) == (False, b"")
    assert reason in answer["reason"]


@pytest.mark.promises("resident.socket")
async def test_only_the_user_can_reach_the_files_of_the_resident(resident: ResidentProcess, home: Path) -> None:
    modes = {
        name: stat.S_IMODE((home / name).stat().st_mode) for name in ("serve.sock", "serve.json", "serve.lock")
    }

    assert modes == {"serve.sock": 0o600, "serve.json": 0o600, "serve.lock": 0o600}


@pytest.mark.promises("resident.socket")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_process_of_another_user_is_not_served(resident: ResidentProcess, home: Path) -> None:
    os.chmod(home, 0o711)
    os.chmod(home / "serve.sock", 0o666)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.chdir(home)
            os.setuid(NOBODY)
            channel = socket.socket(socket.AF_UNIX)
            channel.connect("serve.sock")
            channel.sendall(b'{"parley": "status", "v": 1}\n')
            os.write(writing, b"got " + channel.recv(100))
        except ConnectionError:
            os.write(writing, b"got nothing")
        finally:
            os._exit(0)
    os.close(writing)
    got = await asyncio.to_thread(os.read, reading, 100)
    os.close(reading)
    await asyncio.to_thread(os.waitpid, child, 0)

    assert got in (b"got ", b"got nothing")
    await until(lambda: "refused a connection of another user" in resident.stderr_text())


@LANDLOCK
@pytest.mark.promises("resident.socket")
async def test_a_confined_command_is_not_served_although_it_may_use_sockets(
    resident: ResidentProcess, home: Path, tmp_path: Path
) -> None:
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        'print("connected"); s.sendall(b"{\\"parley\\": \\"status\\", \\"v\\": 1}\\n"); print(s.recv(100))'
    )
    settings = ("-c", "sandbox.mechanism=landlock", "-c", "sandbox.allow_unix_sockets=true")
    command = ("/usr/bin/python3", "-c", program, str(home / "serve.sock"))
    _, out, errors = await parley(
        "sandbox", "--mode", "read-only", *settings, "--cwd", str(tmp_path), "--", *command, env=resident.environ
    )

    assert out.startswith("connected"), errors
    assert '"ok"' not in out
    await until(lambda: "more confined" in resident.stderr_text())


# --- parley serve --------------------------------------------------------------------------


@pytest.mark.promises("resident.one")
async def test_a_second_resident_names_the_first_and_exits(resident: ResidentProcess, home: Path) -> None:
    code, out, errors = await parley("serve", env=resident.environ)
    as_json = await parley("serve", "--json", env=resident.environ)

    assert (code, out) == (4, "")
    assert f"process {resident.process.pid}" in errors
    assert str(home / "serve.sock") in errors
    assert json.loads(as_json[1])["pid"] == resident.process.pid


@pytest.mark.promises("config.unknown")
async def test_unknown_keys_are_logged_at_the_start_and_not_for_each_client(
    parley_model: ScriptedModel, home: Path, start: Start
) -> None:
    config = "[tui]\ntheme = 1\n"
    async with ResidentProcess(parley_model, home, config=config) as resident:
        at_start = resident.stderr_text().count("`tui`: unknown setting, ignored")
        for _ in range(2):
            await start(config=config)
        later = resident.stderr_text().count("unknown setting")
        asked(home, "reload")
        reloaded = resident.stderr_text().count("unknown setting")

    assert (at_start, later, reloaded) == (1, 1, 2)


@pytest.mark.promises("resident.one")
@pytest.mark.waits
async def test_a_resident_whose_lock_file_was_removed_stays_the_only_one(
    resident: ResidentProcess, home: Path
) -> None:
    (home / "serve.lock").unlink()
    first = await parley("serve", env=resident.environ)
    (home / "serve.lock").unlink(missing_ok=True)
    await until(lambda: is_running(str(home)))
    second = await parley("serve", env=resident.environ)
    stopped = await parley("serve", "--stop", env=resident.environ)

    assert [code for code, _, _ in (first, second, stopped)] == [4, 4, 0]
    assert all(f"process {resident.process.pid}" in errors for _, _, errors in (first, second))
    assert "lock file of the resident server was removed" in resident.stderr_text()
    assert not is_running(str(home))


@pytest.mark.promises("resident.status")
async def test_status_reports_the_resident_or_that_there_is_none(
    resident: ResidentProcess, start: Start, tmp_path: Path
) -> None:
    await start()
    code, out, _ = await parley("serve", "--status", "--json", env=resident.environ)
    status = json.loads(out)
    text = (await parley("serve", "--status", env=resident.environ))[1]
    nowhere = {**resident.environ, "PARLEY_HOME": str(tmp_path)}
    none = await parley("serve", "--status", env=nowhere)

    assert (status["node"], status["not_a_node"], "\nnode " in text) == (None, None, False)
    assert code == 0
    assert (status["pid"], status["version"], status["clients"]) == (resident.process.pid, __version__, 1)
    assert f"process {resident.process.pid}" in text
    assert (none[0], none[1]) == (3, "")
    assert "no resident server" in none[2]
    assert status["socket"] == resident.description["socket"]


@pytest.mark.promises("resident.status")
async def test_status_names_a_resident_that_cannot_be_reached(parley_model: ScriptedModel, home: Path) -> None:
    files = Home(parley_model, home=home)
    files.open()
    lock = ResidentLock(str(home))
    assert lock.acquire()
    code, out, errors = await parley("serve", "--status", env=files.environ)
    lock.release()
    files.close()

    assert (code, out) == (1, "")
    assert f"runs as process {os.getpid()} (" in errors
    assert "but cannot be reached: its socket was removed" in errors


@pytest.mark.promises("resident.stop")
@pytest.mark.parametrize("option", ["--stop", "--drain"])
def test_a_resident_that_is_already_ending_is_waited_for(
    option: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    monkeypatch.setenv("PARLEY_HOME", str(home))
    lock = ResidentLock(str(home))
    assert lock.acquire()
    ending = iter((lambda: None, lock.release))  # the server has removed its socket, and ends a moment later
    monkeypatch.setattr(time, "sleep", lambda seconds: next(ending)())

    assert main(["serve", option, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pid": None, "stopped": True}


@pytest.mark.promises("resident.stop")
async def test_stop_lets_a_running_turn_end(
    resident: ResidentProcess, parley_model: ScriptedModel, start: Start, home: Path
) -> None:
    editor = await start()
    conversation = await editor.create()
    parley_model.says("Half, ", HOLD, "and whole.")
    await conversation.send("go")
    await parley_model.wait_until_held()
    stopping = asyncio.create_task(parley("serve", "--stop", env=resident.environ))
    await until(lambda: not (home / "serve.sock").exists())
    parley_model.release()
    code, _, _ = await stopping
    again = await start()
    page = await again.client.conversation(conversation.id).read()

    assert (code, await resident.process.wait()) == (0, 0)
    assert page.events[-1].msg == TaskComplete(last_agent_message="Half, and whole.")
    assert not (home / "serve.json").exists()


@pytest.mark.promises("resident.stop")
async def test_a_turn_that_does_not_end_in_time_is_interrupted(
    parley_model: ScriptedModel, home: Path, start: Start
) -> None:
    config = "[serve]\ndrain_seconds = 0\n"
    async with ResidentProcess(parley_model, home, config=config) as resident:
        editor = await start(config=config)
        conversation = await editor.create()
        parley_model.says(HOLD, "Never said.")
        await conversation.send("go")
        await parley_model.wait_until_held()
        resident.process.send_signal(signal.SIGTERM)
        code = await resident.process.wait()
    end = await last_event(the_same(conversation, await start(config=config)))

    assert code == 0
    assert isinstance(end, ErrorEvent)
    assert end.reason == "stopped"


# --- parley mcp --resident -----------------------------------------------------------------


@pytest.mark.promises("resident.started")
@pytest.mark.parametrize("how", ["option", "setting"])
async def test_a_resident_is_started_once_and_outlives_the_clients(
    parley_model: ScriptedModel, start: Start, home: Path, how: str
) -> None:
    options: dict[str, Any] = {"env": {"SECRET_OF_CLIENT": "hush"}}
    if how == "option":
        options["arguments"] = ["--resident"]
    else:
        options["config"] = "[mcp]\nresident = true\n"
    try:
        first, second = await asyncio.gather(start(**options), start(**options))
        conversation = await first.create()
        status = asked(home, "status")
        environment = await asyncio.to_thread(Path(f"/proc/{status['pid']}/environ").read_bytes)
        parley_model.says(HOLD, "Done.")
        await conversation.send("go")
        await parley_model.wait_until_held()
        for client in (first, second):
            client.kill()
            await client.exit_code()
        again = await start(**options)
        async with again.client.conversation(conversation.id).stream() as stream:
            parley_model.release()
            await events_until(stream, is_(TaskComplete))
    finally:
        asked(home, "stop")

    assert status["clients"] == 2
    assert b"SECRET_OF_CLIENT" not in environment
    assert (home / "serve.log").exists()


@pytest.mark.promises("resident.started")
async def test_without_a_resident_a_client_is_served_in_process(start: Start, home: Path) -> None:
    process = await start()
    await process.create()

    with pytest.raises(NoResident):
        connect(str(home))


@pytest.mark.promises("resident.relay")
async def test_a_refused_relay_serves_its_client_and_says_so(start: Start, home: Path) -> None:
    """A server of another version refuses the hello of the relay."""
    await asyncio.to_thread(home.mkdir, parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(home / "serve.sock"))
    listener.listen()

    def refuse() -> None:
        channel, _ = listener.accept()
        with channel:
            channel.recv(2**20)
            channel.sendall(b'{"ok": false, "reason": "it is of another version"}\n')

    refusing = asyncio.create_task(asyncio.to_thread(refuse))
    process = await start()
    await process.create()
    await refusing
    listener.close()

    assert "this process serves the client: it is of another version" in process.stderr_text()


async def test_a_table_for_a_node_without_a_token_is_reported_at_the_start(
    parley_model: ScriptedModel, home: Path
) -> None:
    async with ResidentProcess(parley_model, home, config='[node]\nid = "node-1"\n') as server:
        text = (await parley("serve", "--status", env=server.environ))[1]
        errors = server.stderr_text()

    reason = "not a node: PARLEY_NODE_TOKEN is not set"
    assert f"node    {reason}\n" in text
    assert f"[node] has no effect: this server is {reason}" in errors
