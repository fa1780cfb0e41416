"""Shutdowns that something delays: the server logs the reason and exits."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.builders.tools import NoCommands
from kit.clients.codex_calls import speaking
from kit.clients.requests import initialize, tool
from kit.clients.shared_home import events_until, is_
from kit.clients.wire_client import speaking as talking
from kit.servers.remote_owner import FollowedTurn
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.app.system_clock import SystemClock
from parley.config.load import Loader
from parley.models import model_opener
from parley.models.http import Http
from parley.ports.outbox import OpenFrame
from parley.ports.store import ConversationPage, Query
from parley.runtime.registry import ConversationRegistry
from parley.server import serve
from parley.server.context import ServerContext
from parley.server.serve import ServerCore
from parley.stores.memory import MemoryStore
from parley.testing import HOLD, ParleyProcess, ScriptedModel
from parley.testing.home import Home
from parley.tools import AgentTools
from parley.transports.descriptors import DescriptorTransport
from parley.wire.events import AgentMessageDelta
from parley.wire.jsonrpc import encode

REQUEST = b'{"jsonrpc":"2.0","id":%d,"method":"tools/list"}\n'
UNREAD = "shutting down although a client has not read all messages"
UNENDED = "shutting down without waiting for turns that did not end"
UNANSWERED = "shutting down before all requests have a response"


class Gone:
    """The outbox of a client that has disconnected after reading everything."""

    writable = True

    @property
    def outbox(self) -> Gone:
        return self

    async def read(self, take: Callable[[Any], None]) -> None:
        pass

    def send(self, frame: bytes) -> None:
        pass

    def when_writable(self, wake: Callable[[], None]) -> None:
        pass

    def begin_frame(self) -> OpenFrame:
        raise NotImplementedError  # no test sends in parts

    async def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Unending(ConversationRegistry):
    """Conversations, one of which has a turn that cannot be ended."""

    async def stop(self) -> None:
        await asyncio.Event().wait()


class Unanswering(ConversationRegistry):
    """Conversations whose list is never returned."""

    async def page(self, query: Query) -> ConversationPage:
        await asyncio.Event().wait()
        raise AssertionError


class Asks(Gone):
    """A client that disconnects before it gets the answer."""

    async def read(self, take: Callable[[Any], None]) -> None:
        take(encode(initialize(1)))
        take(encode(tool(2, "conversationsList", {})))
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("kind", "client", "late"), [(Unending, Gone(), UNENDED), (Unanswering, Asks(), UNANSWERED)]
)
async def test_a_part_that_does_not_end_is_abandoned_and_named(
    caplog: pytest.LogCaptureFixture, kind: type[ConversationRegistry], client: Gone, late: str
) -> None:
    clock, http = SystemClock(), Http()
    loader = Loader(environ=os.environ, server_dir="/")
    conversations = kind(
        store=MemoryStore(),
        choose=loader.choose,
        clock=clock,
        open_model=model_opener(http=http, clock=clock),
        tools=AgentTools(commands=NoCommands()),
        commands=NoCommands(),
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await ServerCore(ServerContext(conversations=conversations, loader=loader)).serve_only_client(client)
        await http.close()

    assert caplog.messages == [late]


@pytest.mark.waits
async def test_a_client_that_does_not_read_is_given_up(parley_model: ScriptedModel) -> None:
    home = Home(parley_model)
    home.open()
    unread, theirs = os.pipe()
    try:
        server = await asyncio.create_subprocess_exec(
            *home.command,
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env=home.environ,
            cwd=home.work,
        )
        assert server.stdin is not None
        assert server.stderr is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            server.stdin.write(b"".join(REQUEST % number for number in range(500)))  # more than a pipe holds
            server.stdin.close()
            complaint = (await server.stderr.read()).decode()
            exit_code = await server.wait()
    finally:
        os.close(unread)
        os.close(theirs)
        home.close()

    assert (exit_code, complaint.count("\n"), complaint.count(UNREAD)) == (0, 1, 1)


@pytest.mark.waits
async def test_a_server_ends_though_another_process_was_stopped_while_it_wrote(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says(HOLD)
    home = tmp_path / "home"
    async with speaking(parley_model, home=home) as wire:
        wire.codex(1, "go")
        await parley_model.wait_until_held()
        with (home / "write.lock").open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            wire.raw.close_stdin()
            assert await wire.raw.exit_code() == 0

        assert UNENDED in wire.raw.stderr_text()
        assert "before the store is closed: slow disk, or another process holds" in wire.raw.stderr_text()


async def test_a_call_that_waits_for_a_process_stopped_while_writing_is_answered(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with ParleyProcess(parley_model, home=home) as other:
        conversation = await other.create()
    async with talking(parley_model, home=home) as client, asyncio.timeout(TIMEOUT_SECONDS):
        with (home / "write.lock").open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            request = client.message(conversation.id, "go")
            client.raw.close_stdin()
            answer = await client.raw.expect(lambda message: message.get("id") == request)
            exit_code = await client.raw.exit_code()

    (block,) = answer["result"]["content"]
    assert ("Server is shutting down" in block["text"], exit_code) == (True, 0)


@pytest.mark.waits
async def test_a_server_ends_though_it_writes_down_what_a_client_of_another_process_says(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says("Working", HOLD)
    home = tmp_path / "home"
    async with (
        speaking(parley_model, home=home) as wire,
        ParleyProcess(parley_model, home=home) as other,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        wire.codex(1, "go")
        await parley_model.wait_until_held()
        (listed,) = (await other.client.list()).conversations
        conversation = other.client.conversation(listed.conversation_id)
        async with conversation.stream() as stream:
            await events_until(stream, is_(AgentMessageDelta))
            with (home / "write.lock").open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                sending = asyncio.create_task(conversation.send("and that"))
                await until(lambda: another_process_waits_to_write(home))
                wire.raw.close_stdin()
                exit_code = await wire.raw.exit_code()
            await sending

    assert exit_code == 0


async def test_a_message_that_the_owner_has_is_answered_even_if_no_time_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHUTDOWN_SECONDS", "CLOSE_SECONDS", "LAST_ANSWERS_SECONDS"):
        monkeypatch.setattr(serve, name, 0.0)  # as if the computer had been busy with other processes
    stdin, client_in = os.pipe()
    client_out, stdout = os.pipe()
    home = str(tmp_path)
    async with FollowedTurn(home) as turn, asyncio.timeout(TIMEOUT_SECONDS):
        loader = Loader(environ={"PARLEY_HOME": home}, server_dir=home)
        core = ServerCore(ServerContext(conversations=turn.second.conversations, loader=loader))
        serving = asyncio.create_task(core.serve_only_client(DescriptorTransport(stdin=stdin, stdout=stdout)))
        message = {"conversation_id": turn.here.id, "content": [{"type": "text", "text": "and that"}]}
        for request in (initialize(1), tool(2, "conversationSendMessage", message)):
            os.write(client_in, encode(request) + b"\n")
        await turn.owner.asked(1)
        os.close(client_in)
        await serving
    os.close(stdin)
    os.close(stdout)

    received = os.read(client_out, 1_000_000).splitlines()
    os.close(client_out)
    (answer,) = [message for message in map(json.loads, received) if message.get("id") == 2]
    (block,) = answer["result"]["content"]
    assert "runs a turn of the conversation and does not answer" in block["text"]


async def test_a_command_that_another_process_may_still_execute_is_not_reported_as_refused(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says("Working", HOLD)
    home = tmp_path / "home"
    async with (
        ParleyProcess(parley_model, home=home) as other,
        talking(parley_model, home=home) as client,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        conversation = await other.create()
        await conversation.send("go")
        await parley_model.wait_until_held()
        await client.open_stream(conversation.id)
        os.kill(other.pid, signal.SIGSTOP)
        try:
            request = client.message(conversation.id, "and that")
            await client.value_of(
                client.call("conversationRead", conversation_id=conversation.id)
            )  # the answer shows that the server has received the message before it
            client.raw.close_stdin()
            answer = await client.raw.expect(lambda message: message.get("id") == request)
            exit_code = await client.raw.exit_code()
        finally:
            os.kill(other.pid, signal.SIGCONT)

    (block,) = answer["result"]["content"]
    assert f"process {other.pid} runs a turn of the conversation and does not answer" in block["text"]
    assert exit_code == 0


def another_process_waits_to_write(home: Path) -> bool:
    with (home / "gate.lock").open("r+b") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
