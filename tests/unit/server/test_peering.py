"""Requests of another process are executed in order. After a refusal, none is executed until the next follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from kit.clients.requests import request
from kit.servers.local_server import LocalServer
from kit.servers.slow_store import DISK_FULL, SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.state import Phase
from parley.ports.outbox import OpenFrame
from parley.server.peering import serve_peer
from parley.wire.framing import Overlong
from parley.wire.ids import Seq
from parley.wire.jsonrpc import encode
from parley.wire.peers import NOT_OWNER, NOT_WRITTEN, Follow, InterruptTurn, RenameConversation


class Peer:
    """The other process: a transport and its outbox."""

    writable = True

    def __init__(self) -> None:
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._left = asyncio.Event()

    @property
    def outbox(self) -> Peer:
        return self

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        self._take = take
        await self._left.wait()

    def send(self, frame: bytes) -> None:
        for line in frame.split(b"\n"):
            if "method" not in (message := msgspec.json.decode(line)):
                self._answers.put_nowait(message)

    def when_writable(self, wake: Callable[[], None]) -> None: ...

    def begin_frame(self) -> OpenFrame:
        raise NotImplementedError  # no test sends in parts

    async def flush(self) -> None: ...

    def close(self) -> None: ...

    def stop_reading(self) -> None:
        self._left.set()

    def leave(self) -> None:
        self._left.set()

    async def error_code_of(self, method: str, params: Struct) -> int | None:
        """Return the error code of a refused request; None if it succeeds."""
        error = await self.error_of(method, params)
        return error["code"] if error else None

    async def error_of(self, method: str, params: Struct) -> Any:
        self._take(encode(request(1, method, params)))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            answer = await self._answers.get()
        return answer.get("error")


async def test_after_a_not_owner_refusal_nothing_is_executed_before_the_next_follow(home: str) -> None:
    peer = Peer()
    async with LocalServer(home) as server, asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_peer(peer, server.context))
        client = await server.client()
        conversation = await server.asking(client)
        follow = Follow(conversation_id=conversation.id, after=Seq(0))
        interrupt = InterruptTurn(conversation_id=conversation.id)
        rename = RenameConversation(conversation_id=conversation.id, title="Foxes")
        codes = [await peer.error_code_of(request.METHOD, request) for request in (follow, interrupt)]
        await client.wait_for_message("error")
        codes.append(await peer.error_code_of(rename.METHOD, rename))
        await client.say(conversation.id, 1)
        await client.approval_request(2)
        codes += [await peer.error_code_of(request.METHOD, request) for request in (interrupt, follow, rename)]
        phase = conversation.state.phase
        peer.leave()

    assert codes == [None, None, NOT_OWNER, NOT_OWNER, None, None]
    assert phase is Phase.ASKING


async def test_commands_fail_while_nothing_can_be_stored(home: str) -> None:
    peer, store = Peer(), SlowStore()
    async with LocalServer(home, store=store) as server, asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_peer(peer, server.context))
        conversation = await server.asking(await server.client())
        follow = Follow(conversation_id=conversation.id, after=Seq(0))
        rename = RenameConversation(conversation_id=conversation.id, title="Foxes")
        await peer.error_code_of(follow.METHOD, follow)
        store.slow = True
        asking = asyncio.create_task(peer.error_of(rename.METHOD, rename))
        await store.until_waiting()
        await store.fail()
        error = await asking
        store.slow = False
        again = await peer.error_of(rename.METHOD, rename)
        peer.leave()

    assert error == {"code": NOT_WRITTEN, "message": DISK_FULL, "data": {"code": "store_failed"}}
    assert again is None
