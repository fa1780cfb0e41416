"""Several clients of one server: each connects and disconnects without an effect on the others."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kit.builders.approvals import CWD
from kit.clients.requests import request, tool
from kit.servers.local_server import FrameList, LocalServer
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.runtime.conversation import Conversation
from parley.server.context import LOCAL_USER, OutboxReply, Principal, Role
from parley.server.serve import ClientConnection, ServerCore
from parley.server.subscription import Subscription
from parley.wire.framing import Overlong
from parley.wire.jsonrpc import encode
from parley.wire.mcp import FULL_VERSION


def hello() -> dict[str, Any]:
    """Return the `initialize` of a client that can be asked."""
    able: dict[str, Any] = {"elicitation": {}}
    info = {"name": "test", "version": "0"}
    params = {"protocolVersion": FULL_VERSION, "capabilities": able, "clientInfo": info}
    return request(1, "initialize", params)


def with_progress(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "params": {**call["params"], "_meta": {"progressToken": 7}}}


class _Outbox(FrameList):
    """An outbox that ends together with its transport."""

    def __init__(self, leave: Callable[[], None]) -> None:
        super().__init__(FULL_VERSION)
        self._leave = leave

    def close(self) -> None:
        super().close()
        self._leave()


class LocalTransport:
    """A transport in this process."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.outbox = _Outbox(self.leave)

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        while (frame := await self._frames.get()) is not None:
            take(frame)

    def send(self, message: Any) -> None:
        self._frames.put_nowait(encode(message))

    def leave(self) -> None:
        """Close the connection after all sent messages."""
        self._frames.put_nowait(None)

    async def until(self, holds: Callable[[Any], bool]) -> Any:
        """Return the first message for which `holds` is true."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (found := next(filter(holds, self.outbox.messages), None)) is None:
                self.outbox.changed.clear()
                await self.outbox.changed.wait()
        return found

    async def answer_to(self, request_id: int) -> Any:
        return (await self.until(lambda one: one.get("id") == request_id and "method" not in one))["result"]

    async def wait_for_message(self, method: str) -> Any:
        return await self.until(lambda one: one.get("method") == method)

    def methods(self) -> list[str]:
        return [one["method"] for one in self.outbox.messages if "method" in one]


class Clients:
    """Clients of one server."""

    def __init__(self, server: LocalServer, tasks: asyncio.TaskGroup) -> None:
        self.server, self.core = server, ServerCore(server.context)
        self._tasks = tasks

    async def connect(self) -> tuple[LocalTransport, asyncio.Task[None]]:
        """Return a client that was initialized and can be asked, and the task that serves it."""
        transport = LocalTransport()
        task = self._tasks.create_task(self.core.serve_client(transport))
        transport.send(hello())
        await transport.answer_to(1)
        return transport, task

    @property
    def connections(self) -> set[ClientConnection]:
        return self.core.clients


@asynccontextmanager
async def one_server(home: str) -> AsyncIterator[Clients]:
    async with LocalServer(home) as server, asyncio.TaskGroup() as tasks:
        clients = Clients(server, tasks)
        yield clients
        await clients.core.shutdown()


async def gone(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await task


@pytest.mark.promises("clients.independent")
async def test_a_client_leaves_and_its_turn_continues_for_the_other(home: str) -> None:
    async with one_server(home) as clients:
        first, served = await clients.connect()
        (connection,) = clients.connections
        objects: list[object] = [connection, connection.session, first.outbox]
        left = [weakref.ref(one) for one in objects]
        del connection, objects
        first.send(with_progress(tool(2, "codex", {"prompt": "1", "cwd": CWD})))
        await first.wait_for_message("elicitation/create")
        (conversation,) = clients.server.conversations
        first.send(tool(3, "conversationStream", {"conversation_id": conversation.id}))
        await first.answer_to(3)
        second, _ = await clients.connect()
        second.send(tool(2, "conversationStream", {"conversation_id": conversation.id}))
        approval = await second.wait_for_message("elicitation/create")

        first.leave()
        await gone(served)
        del first, served
        await clients.server.settle_down()
        gc.collect()

        assert [reference() for reference in left] == [None, None, None]
        assert len(clients.connections) == 1
        second.send({"jsonrpc": "2.0", "id": approval["id"], "result": {"decision": "approved"}})
        await second.wait_for_message("task_complete")
        assert clients.server.decisions == [(1, "approved")]


def subscriptions_of(conversation: Conversation) -> list[weakref.ref[Subscription]]:
    passed = (getattr(reader, "_passed", None) for reader in conversation._log.readers.attached)
    return [weakref.ref(one.__self__) for one in passed if one is not None]


async def test_a_closed_stream_and_an_answered_call_are_freed_by_reference_counting(home: str) -> None:
    """Otherwise evicted conversations stay in memory until the garbage collector runs, which is rare."""
    gc.collect()
    gc.disable()
    try:
        async with one_server(home) as clients:
            client, _ = await clients.connect()
            client.send(with_progress(tool(2, "codex", {"prompt": "1", "cwd": CWD})))
            approval = await client.wait_for_message("elicitation/create")
            (conversation,) = clients.server.conversations
            client.send(tool(3, "conversationStream", {"conversation_id": conversation.id}))
            await client.answer_to(3)
            left = subscriptions_of(conversation)
            assert len(left) == 2
            client.send({"jsonrpc": "2.0", "id": approval["id"], "result": {"decision": "approved"}})
            await client.answer_to(2)
            client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}})
            await until(lambda: not conversation._log.readers.attached)
            await clients.server.settle_down()

            assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()


@pytest.mark.promises("clients.independent")
async def test_a_message_is_executed_though_its_client_leaves_at_once(home: str) -> None:
    async with one_server(home) as clients:
        watching, _ = await clients.connect()
        conversation = await clients.server.create()
        watching.send(tool(2, "conversationStream", {"conversation_id": conversation.id}))
        await watching.answer_to(2)
        leaving, served = await clients.connect()
        content = [{"type": "text", "text": "0"}]
        leaving.send(tool(2, "conversationSendMessage", {"conversation_id": conversation.id, "content": content}))
        leaving.leave()
        await gone(served)

        await watching.wait_for_message("task_complete")


async def test_a_client_that_waits_for_events_and_leaves_is_not_waited_for(home: str) -> None:
    async with one_server(home) as clients:
        conversation = await clients.server.create()
        waiting, served = await clients.connect()
        waiting.send(tool(2, "conversationRead", {"conversation_id": conversation.id, "wait_seconds": 50}))
        await clients.server.settle_down()
        waiting.leave()

        await gone(served)


async def test_a_shutdown_answers_all_clients_and_ends_their_streams(home: str) -> None:
    async with LocalServer(home) as server, asyncio.TaskGroup() as tasks:
        clients = Clients(server, tasks)
        conversation = await server.create()
        served = [await clients.connect() for _ in range(2)]
        for transport, _ in served:
            transport.send(tool(2, "conversationStream", {"conversation_id": conversation.id}))
            await transport.answer_to(2)
            transport.send(tool(3, "conversationRead", {"conversation_id": conversation.id, "wait_seconds": 50}))
        await server.settle_down()

        await clients.core.shutdown()

        assert all(transport.outbox.is_gone for transport, _ in served)
        for transport, task in served:
            end = await transport.wait_for_message("notifications/stream_disconnected")
            assert (end["params"]["reason"], end["params"]["code"]) == (
                "Server is shutting down",
                "shutting_down",
            )
            assert (await transport.answer_to(3))["isError"] is False
            transport.leave()
            await gone(task)


async def test_an_answer_goes_to_the_reply_channel_of_its_request(home: str) -> None:
    async with LocalServer(home) as server, asyncio.TaskGroup() as tasks:
        out, replied = FrameList(FULL_VERSION), FrameList(FULL_VERSION)
        reply = OutboxReply(replied)
        principal = Principal(name="reader", role=Role.ADMIN)
        connection = ClientConnection(out, server.context, tasks, principal)
        connection.take(encode(hello()))
        await server.settle_down()
        connection.take(encode(request(2, "ping", {})), reply)
        connection.take(encode(request(3, "nothing", {})), reply)
        connection.take(encode(tool(4, "codex", {"prompt": "0", "cwd": CWD})), reply)
        await server.settle_down()

        assert [one["id"] for one in out.messages] == [1]
        assert [one["id"] for one in replied.messages if "method" not in one] == [3, 2, 4]
        assert {one["method"] for one in replied.messages if "method" in one} >= {"codex/event", "task_complete"}
        assert connection.session.context(reply).principal is principal
        connection.remove()


def test_a_role_includes_all_lower_ones() -> None:
    assert list(Role) == sorted(Role)
    assert LOCAL_USER.role is Role.ADMIN
