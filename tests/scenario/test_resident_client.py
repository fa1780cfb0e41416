"""The Python client of a resident server: its connection, and lost connections."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.clients.reading import positions, until_end, written
from kit.clients.shared_home import ASKS, events_until, is_, log_of
from kit.clients.shell_turns import sh
from kit.servers.in_process_resident import CuttingSocket, InProcessResident
from kit.servers.resident_process import ResidentProcess
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.client import (
    AlreadyDecided,
    Approval,
    CallLost,
    Client,
    Conversation,
    Disconnected,
    ResidentSocket,
    Stream,
    StreamEvent,
    ToolFailed,
    connect,
)
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import (
    AgentMessage,
    AgentMessageDelta,
    ErrorEvent,
    ExecApprovalRequest,
    ExecCommandEnd,
    TaskComplete,
)

HANDSHAKE_BYTES = 3000
"""A number of bytes that exceeds the output of the server before the first request after the handshake."""

pytestmark = pytest.mark.child_process


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[InProcessResident]:
    async with asyncio.timeout(TIMEOUT_SECONDS), InProcessResident(parley_model, tmp_path / "home") as server:
        yield server


@pytest_asyncio.fixture
async def cutting(resident: InProcessResident, tmp_path: Path) -> AsyncIterator[CuttingSocket]:
    async with CuttingSocket(resident.path, str(tmp_path / "cut.sock")) as socket:
        yield socket


async def created(client: Client, tmp_path: Path) -> Conversation:
    return await client.create(cwd=tmp_path, model=MODEL)


# --- connecting ----------------------------------------------------------------------------


@pytest.mark.promises("resident.settings")
async def test_turns_have_the_environment_and_directory_of_the_client(
    resident: InProcessResident, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    transport = resident.socket()
    transport.env = {**(transport.env or {}), "MARK": "of the client"}
    transport.overrides = ["shell_environment_policy.inherit=all"]
    parley_model.says(sh("c1", "echo $MARK"))
    parley_model.says("Done.")
    async with connect(transport) as client:
        turn = await (await created(client, tmp_path)).send("go")
        (ended,) = [event async for event in turn if isinstance(event, ExecCommandEnd)]

    assert ended.stdout == "of the client\n"


async def test_connect_uses_the_resident_of_the_home_if_one_runs(
    resident: InProcessResident, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARLEY_HOME", os.path.dirname(resident.path))
    async with connect() as client, connect(socket=resident.path) as other:
        conversation = await created(client, tmp_path)
        listed = await other.list()
        clients = len(resident.resident._clients)

    assert [one.conversation_id for one in listed.conversations] == [conversation.id]
    assert clients == 2


async def test_connect_starts_a_child_process_if_no_resident_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARLEY_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    async with connect() as client:
        assert (await client.list()).conversations == ()


async def test_a_socket_without_a_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with connect(socket=tmp_path / "serve.sock"):
            pass
    with pytest.raises(TypeError):
        async with connect(ResidentSocket(), socket=tmp_path / "serve.sock"):
            pass


async def test_a_refusal_is_an_error_with_its_reason(resident: InProcessResident) -> None:
    transport = resident.socket()
    transport.overrides = ["no equals sign"]

    with pytest.raises(ConnectionRefusedError, match=r"refused this client: .*no equals sign"):
        async with connect(transport):
            pass


async def test_a_connection_that_is_lost_in_the_first_handshake_is_an_error(
    resident: InProcessResident, tmp_path: Path
) -> None:
    path = str(tmp_path / "cut.sock")
    async with CuttingSocket(resident.path, path, after=[40]):
        with pytest.raises(Disconnected):
            async with connect(resident.socket(path)):
                pass


async def test_messages_before_the_end_of_stdin_are_answered(resident: InProcessResident, tmp_path: Path) -> None:
    async with connect(resident.socket()) as client:
        conversation = await created(client, tmp_path)
        renaming = asyncio.create_task(conversation.rename("the last words"))
        await asyncio.sleep(0)
    await asyncio.gather(renaming, return_exceptions=True)
    async with connect(resident.socket()) as client:
        (listed,) = (await client.list()).conversations

    assert listed.title == "the last words"


async def test_what_is_sent_while_the_connection_closes_is_dropped(
    resident: InProcessResident, tmp_path: Path
) -> None:
    transport = resident.socket()
    async with connect(transport) as client:
        conversation = await created(client, tmp_path)
        async with conversation.stream() as stream:
            closing = asyncio.create_task(transport.close())
            await asyncio.sleep(0)
            await stream.close()  # notifies the server
            transport.send(b"{}\n")
            await closing


# --- a lost connection ---------------------------------------------------------------------


async def test_a_text_goes_on_where_the_connection_was_cut(
    resident: InProcessResident, cutting: CuttingSocket, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says("One, ", "two, ", HOLD, "three, ", HOLD, "four.")
    async with connect(resident.socket(cutting.path)) as client:
        conversation = await created(client, tmp_path)
        async with conversation.stream() as stream:
            turn = await conversation.send("go")
            seen = [event async for event in _deltas(stream, 2)]
            cutting.cut()
            await until(lambda: cutting.connections == 2)
            parley_model.release()
            seen += [event async for event in _deltas(stream, 1)]
            cutting.cut()
            await parley_model.wait_until_held()
            parley_model.release()
            seen += await until_end(stream)
            text = (await turn.result()).text
        log = await conversation.read()

    (shown,) = written(seen).values()
    assert shown in ("One, two, three, ", text)  # the last piece may have arrived before the stream continued
    assert text == "One, two, three, four."
    assert positions(seen) == [event.seq for event in log.events]


async def _deltas(stream: Stream, number: int) -> AsyncIterator[StreamEvent]:
    """Yield events up to and including this number of deltas."""
    async for event in stream.detailed():
        yield event
        number -= isinstance(event.msg, AgentMessageDelta)
        if not number:
            return


async def test_streams_and_turns_of_a_conversation_all_go_on(
    resident: InProcessResident, cutting: CuttingSocket, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says("One, ", HOLD, "two.")
    async with connect(resident.socket(cutting.path)) as client:
        conversation = await created(client, tmp_path)
        turn = await conversation.send("go")
        async with conversation.stream() as first, conversation.stream() as second:
            waiting = asyncio.create_task(turn.result())
            await events_until(first, is_(AgentMessageDelta))
            cutting.cut()
            await until(lambda: cutting.connections == 2)
            parley_model.release()
            ends = [(await until_end(stream))[-1].msg for stream in (first, second)]
            result = await waiting

    assert ends == [TaskComplete(last_agent_message="One, two.")] * 2
    assert result.text == "One, two."


async def test_a_stream_that_is_opened_without_a_connection_waits_for_it(
    resident: InProcessResident, cutting: CuttingSocket, tmp_path: Path
) -> None:
    async with connect(resident.socket(cutting.path)) as client:
        conversation = await created(client, tmp_path)
        cutting.cut()
        async with conversation.stream() as stream:
            assert stream.snapshot == []

    assert cutting.connections == 2


async def test_a_call_in_flight_fails_and_a_message_is_sent_again(
    resident: InProcessResident, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    """The connection is cut after the server has received the request and before the client gets the result."""
    parley_model.says("Done.")
    async with connect(resident.socket()) as client:
        conversation = await created(client, tmp_path)
    path = str(tmp_path / "cut.sock")
    async with CuttingSocket(resident.path, path) as socket, connect(resident.socket(path)) as client:
        again = client.conversation(conversation.id)
        sending = asyncio.create_task(again.send("go"))
        renaming = asyncio.create_task(again.rename("new"))
        reading = asyncio.create_task(again.status())
        await asyncio.sleep(0)
        socket.cut()
        with pytest.raises(CallLost, match="conversationRename: the connection was lost before the result"):
            await renaming
        text = (await (await sending).result()).text
        await reading
        messages = [event for event in await log_of(again) if isinstance(event, AgentMessage)]

    assert text == "Done."
    assert messages == [AgentMessage(message="Done.")]


async def test_an_open_approval_is_requested_again_and_an_old_answer_is_ignored(
    resident: InProcessResident, cutting: CuttingSocket, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    asked: asyncio.Queue[Approval] = asyncio.Queue()
    parley_model.says(sh("c1", "touch made-by-command"))
    parley_model.says("Done.")
    async with connect(resident.socket(cutting.path), on_approval=asked.put) as client:
        conversation = await client.create(cwd=tmp_path, model=MODEL, **ASKS)
        async with conversation.stream() as stream:
            await conversation.send("go")
            await events_until(stream, is_(ExecApprovalRequest))
            first = await asked.get()
            cutting.cut()
            second = await asked.get()
            with pytest.raises(AlreadyDecided):
                await first.deny()
            await second.approve()
            await until_end(stream)

    assert first.approval_id == second.approval_id
    assert "made-by-command" in os.listdir(tmp_path)


async def test_without_reconnecting_everything_ends_with_the_connection(
    resident: InProcessResident, cutting: CuttingSocket, tmp_path: Path
) -> None:
    async with connect(resident.socket(cutting.path), reconnect_seconds=0) as client:
        conversation = await created(client, tmp_path)
        async with conversation.stream() as stream:
            cutting.cut()
            with pytest.raises(Disconnected):
                await stream.turn()
        with pytest.raises(Disconnected):
            await client.list()

    assert cutting.connections == 1


async def test_a_client_gives_up_after_its_time(
    resident: InProcessResident, cutting: CuttingSocket, tmp_path: Path
) -> None:
    async with connect(resident.socket(cutting.path), reconnect_seconds=0.2) as client:
        conversation = await created(client, tmp_path)
        async with conversation.stream() as stream:
            os.unlink(cutting.path)
            cutting.cut()
            waiting = asyncio.create_task(client.list())
            with pytest.raises(Disconnected):
                await stream.turn()
            with pytest.raises(Disconnected):
                await waiting


async def test_a_stream_of_a_conversation_that_was_deleted_meanwhile_says_so(
    resident: InProcessResident, cutting: CuttingSocket, tmp_path: Path
) -> None:
    async with connect(resident.socket(cutting.path)) as client, connect(resident.socket()) as other:
        conversation = await created(client, tmp_path)
        async with conversation.stream() as stream:
            path = f"{cutting.path}.away"
            os.rename(cutting.path, path)
            cutting.cut()
            await other.conversation(conversation.id).delete()
            os.rename(path, cutting.path)
            events = [event async for event in stream]
        with pytest.raises(ToolFailed):
            await conversation.status()

    assert (events, stream.disconnected_code) == ([], "unknown_conversation")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(
    first=st.integers(0, 2000),
    cuts=st.lists(st.integers(1, 4000), max_size=5),
    pieces=st.lists(st.text("abc \u00e4\U0001f600", min_size=1, max_size=8), min_size=1, max_size=30),
)
async def test_wherever_connections_are_cut_every_event_is_read_once(
    resident: InProcessResident,
    parley_model: ScriptedModel,
    tmp_path: Path,
    first: int,
    cuts: list[int],
    pieces: list[str],
) -> None:
    """All cuts except the first may also occur in the answer to the hello and in the handshake."""
    path = str(tmp_path / f"{random.getrandbits(64)}.sock")
    async with connect(resident.socket()) as client:
        conversation = await created(client, tmp_path)
    parley_model.says(*pieces)
    async with (
        CuttingSocket(resident.path, path, after=[HANDSHAKE_BYTES + first, *cuts]) as socket,
        connect(resident.socket(path)) as client,
    ):
        watched = client.conversation(conversation.id)
        async with watched.stream() as stream:
            await watched.send("go")
            seen = await until_end(stream)
    async with connect(resident.socket()) as client:
        log = await client.conversation(conversation.id).read()

    assert socket.connections <= len(cuts) + 2
    assert positions(seen) == [event.seq for event in log.events]
    assert [event.msg for event in seen if isinstance(event.meta.seq, int)] == [event.msg for event in log.events]
    assert all("".join(pieces).startswith(text) for text in written(seen).values())


# --- a server that ends --------------------------------------------------------------------


async def _streamed_over_restarts(
    model: ScriptedModel, home: Path, *, restarts: int, chance: random.Random
) -> None:
    """Kill and restart the resident server at random moments while a client streams.

    Compare the events with the log.
    """
    seen: list[StreamEvent] = []
    config = "[serve]\ndrain_seconds = 0\n"
    resident = await ResidentProcess(model, home, config=config).__aenter__()
    try:
        async with connect(resident.socket()) as client:
            conversation = await client.create(cwd=home, model=MODEL)

            async def read(stream: Stream) -> None:
                async for event in stream.detailed():
                    seen.append(event)  # noqa: PERF401 - looked at while it grows

            async with conversation.stream() as stream, asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(read(stream))
                for _ in range(restarts):
                    words = [f"{word} " for word in range(chance.randrange(5, 40))]
                    model.says(*words, HOLD, "end")
                    before = len(seen)
                    turn = await conversation.send("go")
                    await model.wait_until_held()
                    wanted = chance.randrange(len(words))
                    await until(lambda: len(seen) - before >= wanted)  # noqa: B023 - awaited here
                    ending = chance.choice([signal.SIGKILL, signal.SIGTERM])
                    resident.process.send_signal(ending)
                    await resident.__aexit__(None, None, None)
                    resident = await ResidentProcess(model, home, config=config).__aenter__()
                    end = [event async for event in turn][-1]
                    assert isinstance(end, ErrorEvent)
                    assert end.reason == ("restarted" if ending == signal.SIGKILL else "stopped")
                model.says("Done.")
                last = await (await conversation.send("the last")).result()
                await until(lambda: bool(seen) and isinstance(seen[-1].msg, TaskComplete))
                reading.cancel()
            log = await conversation.read(limit=1000)
    finally:
        await resident.__aexit__(None, None, None)

    assert last.text == "Done."
    assert positions(seen) == [event.seq for event in log.events]
    written(seen)


@pytest.mark.promises("resident.client-resumes")
async def test_a_stream_survives_restarts_of_the_resident(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await _streamed_over_restarts(parley_model, tmp_path / "home", restarts=2, chance=random.Random(1))


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
async def test_a_stream_survives_restarts_at_any_moment(
    parley_model: ScriptedModel, tmp_path: Path, number: int
) -> None:
    async with asyncio.timeout(4 * TIMEOUT_SECONDS):
        await _streamed_over_restarts(parley_model, tmp_path / "home", restarts=5, chance=random.Random(number))
