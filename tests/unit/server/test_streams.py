"""Streams whose conversation disappears while its snapshot is sent."""

from __future__ import annotations

import asyncio
from typing import Any

from kit.builders.entries import FIRST
from kit.builders.long_logs import create_long
from kit.servers.local_server import LocalServer
from parley.stores.memory import MemoryStore


class HeldStore(MemoryStore):
    """A store whose reads wait after the first page."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.go_on = asyncio.Event(), asyncio.Event()

    async def read(self, *args: Any, **options: Any) -> Any:
        if options.get("visible_only") and options["after"]:
            self.held.set()
            await self.go_on.wait()
        return await super().read(*args, **options)


async def test_a_deletion_during_a_long_snapshot_ends_the_snapshot_and_the_client_stays_connected(
    home: str,
) -> None:
    store = HeldStore()
    await create_long(store, 10_000, cwd=home)
    async with LocalServer(home, store=store) as server:
        client, other = await server.client(), await server.client()
        client.call("conversationStream", conversation_id=FIRST)
        await store.held.wait()
        await other.value_of(other.call("conversationDelete", conversation_id=FIRST))
        store.go_on.set()
        await client.wait_for_message("notifications/initial_state")

        assert client.outbox.writable
        assert client.number_of("notifications/stream_disconnected") == 1
