"""`parley serve --drain`: turns end without a limit, and nodes begin further turns elsewhere
(`parley.runtime.registry`, `parley.app.resident`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio

from kit.clients.shared_home import ASKS, DelayedAnswer, events_until, is_, log_of, owner_of
from kit.clients.shell_turns import sh
from kit.servers.node_process import NodeProcess
from kit.servers.postgres import NEEDS_POSTGRES, Databases
from kit.servers.resident_process import ResidentProcess, outcome_of, start_parley
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import Client, connect
from parley.client.errors import ToolFailed
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import AgentMessage, ErrorEvent, ExecCommandEnd, TaskComplete, TaskStarted

pytestmark = pytest.mark.child_process

NO_LIMIT: Final = "[serve]\ndrain_seconds = 0\n"
"""Settings with which `parley serve --stop` waits for no turn, so that only `--drain` waits."""

Nodes = tuple[NodeProcess, NodeProcess]


@pytest_asyncio.fixture
async def nodes(parley_model: ScriptedModel, tmp_path: Path, databases: Databases) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(
                NodeProcess(parley_model, tmp_path, name, databases.url(), config=NO_LIMIT)
            )
            for name in "ab"
        ]
        yield a, b


async def drain(server: ResidentProcess) -> asyncio.subprocess.Process:
    """Begin to drain a server. Return the command when the server refuses new clients."""
    command = await start_parley("serve", "--drain", env=server.environ)
    while await status_without_session(server) != 503:  # noqa: ASYNC110 - the server gets the request soon
        await asyncio.sleep(0.01)
    return command


async def status_without_session(server: ResidentProcess) -> int:
    """Return the HTTP status of a request that belongs to no session."""
    headers = {"Authorization": f"Bearer {server.description['token']}", "Accept": "text/event-stream"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(server.description["url"]) as answer,
    ):
        return answer.status


def client_of(server: ResidentProcess, **options: Any) -> Any:
    return connect(url=server.description["url"], token=server.description["token"], reconnect_seconds=0, **options)


async def send_queued(client: Client, conversation: str, text: str) -> None:
    await client.call_tool(
        "conversationSendMessage",
        {"conversation_id": conversation, "content": [{"type": "text", "text": text}], "delivery": "queue"},
    )


@pytest.mark.waits
@NEEDS_POSTGRES
@pytest.mark.promises("resident.drain", "nodes.drain")
async def test_a_draining_node_ends_its_turn_and_its_queue_and_later_turns_continue_on_another_node(
    nodes: Nodes, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    a, b = nodes
    parley_model.says("Let me ", HOLD, "finish.")
    async with asyncio.timeout(TIMEOUT_SECONDS), client_of(a) as one, b.client() as two:
        here, idle = [await one.create(cwd=tmp_path, model=MODEL) for _ in range(2)]
        there = two.conversation(here.id)
        await here.send("go")
        await parley_model.wait_until_held()
        await send_queued(one, here.id, "from the queue")
        command = await drain(a)
        parley_model.says("Elsewhere")
        elsewhere = await (await idle.send("a new turn")).result()
        owner_during = await owner_of(here)
        parley_model.says("Queue done", HOLD)
        async with there.stream() as stream:
            parley_model.release()
            events = await events_until(stream, is_(TaskComplete))
            await parley_model.wait_until_held()
            owner_of_queue = await owner_of(there)
            code = await a.process.wait()
            parley_model.release()
            events += await events_until(stream, is_(TaskComplete))

    assert await outcome_of(command) == (0, "", f"draining process {a.process.pid}; running turns end first\n")
    assert code == 0
    assert elsewhere.text == "Elsewhere"
    assert (owner_during, owner_of_queue) == (a.process.pid, b.process.pid)
    answers = [event.message for event in events if isinstance(event, AgentMessage)]
    assert answers == ["Let me finish.", "Queue done"]


@NEEDS_POSTGRES
@pytest.mark.promises("nodes.drain")
async def test_a_turn_that_waits_for_an_approval_moves_at_once_and_clients_of_the_draining_node_can_answer(
    nodes: Nodes, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    a, b = nodes
    parley_model.says(sh("c1", "touch ran"))
    answer = DelayedAnswer()
    async with asyncio.timeout(TIMEOUT_SECONDS), client_of(a, on_approval=answer) as one, b.client() as two:
        asking = await one.create(cwd=tmp_path, model=MODEL, **ASKS)
        async with asking.stream() as stream, two.conversation(asking.id).stream() as elsewhere:
            await asking.send("go")
            await answer.asked()
            await events_until(elsewhere, is_(TaskStarted))
            parley_model.says("Keeps the node ", HOLD, "running")
            busy = await one.create(cwd=tmp_path, model=MODEL)
            await busy.send("go")
            await parley_model.wait_until_held()
            command = await drain(a)
            while await owner_of(two.conversation(asking.id)) != b.process.pid:  # noqa: ASYNC110 - it moves soon
                await asyncio.sleep(0.01)
            parley_model.says("Approved")
            answer.answer("approved")
            events = await events_until(stream, is_(TaskComplete))
            events_elsewhere = await events_until(elsewhere, is_(TaskComplete))
        log = await log_of(two.conversation(asking.id))
        parley_model.release()
        code = await a.process.wait()

    assert (await outcome_of(command))[0] == code == 0
    assert [event.exit_code for event in events if isinstance(event, ExecCommandEnd)] == [0]
    assert isinstance(log[-1], TaskComplete)
    assert log[-1].last_agent_message == "Approved"
    assert events_elsewhere[-1] == log[-1]


@pytest.mark.promises("resident.drain")
async def test_a_draining_server_begins_no_turn_and_its_queue_continues_with_the_next_server(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says("Let me ", HOLD, "finish.")
    async with asyncio.timeout(TIMEOUT_SECONDS), AsyncExitStack() as stack:
        server = await stack.enter_async_context(ResidentProcess(parley_model, tmp_path / "home", config=NO_LIMIT))
        one = await stack.enter_async_context(client_of(server))
        here, idle = [await one.create(cwd=tmp_path, model=MODEL) for _ in range(2)]
        await here.send("go")
        await parley_model.wait_until_held()
        await send_queued(one, here.id, "from the queue")
        command = await drain(server)
        with pytest.raises(ToolFailed) as refused:
            await idle.send("a new turn")
        await here.send("joins the turn")
        parley_model.says("Joined")
        parley_model.release()
        code = await server.process.wait()
        next_server = ResidentProcess(parley_model, tmp_path / "home")
        parley_model.says("From the queue")
        await stack.enter_async_context(next_server)
        two = await stack.enter_async_context(client_of(next_server))
        there = two.conversation(here.id)
        async with there.stream() as events:
            await events_until(
                events,
                lambda event: isinstance(event, TaskComplete) and event.last_agent_message == "From the queue",
            )
        log = await log_of(there)

    assert (await outcome_of(command))[0] == code == 0
    assert refused.value.code == "shutting_down"
    assert [event.last_agent_message for event in log if isinstance(event, TaskComplete)] == [
        "Joined",
        "From the queue",
    ]


@pytest.mark.promises("resident.drain")
async def test_stop_adds_the_limit_to_a_drain(parley_model: ScriptedModel, tmp_path: Path) -> None:
    parley_model.says("Never said", HOLD)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        ResidentProcess(parley_model, tmp_path / "home", config=NO_LIMIT) as server,
        client_of(server) as client,
    ):
        conversation = await client.create(cwd=tmp_path, model=MODEL)
        async with conversation.stream() as stream:
            await conversation.send("go")
            await parley_model.wait_until_held()
            draining = await drain(server)
            stopping = await start_parley("serve", "--stop", env=server.environ)
            events = await events_until(stream, is_(ErrorEvent))
        code = await server.process.wait()

    assert [(await outcome_of(one))[0] for one in (draining, stopping)] == [0, 0]
    assert code == 0
    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].reason == "stopped"
