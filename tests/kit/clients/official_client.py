"""Records all notifications of official Python clients, including those that the clients do not pass on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

__all__ = ["Received", "recorded"]


class Received:
    """The notifications that a client received."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    def add(self, message: JSONRPCNotification) -> None:
        self.queue.put_nowait({"method": message.method, "params": dict(message.params or {})})

    async def until(self, method: str) -> None:
        """Wait for the next notification with this method."""
        while not self.messages or self.messages[-1]["method"] != method:
            self.messages.append(await self.queue.get())
        self.messages.append({"method": ""})  # the next call waits for another one

    def take_all(self) -> None:
        """Take all notifications that have arrived."""
        while not self.queue.empty():
            self.messages.append(self.queue.get_nowait())


@asynccontextmanager
async def recorded(transport: AbstractAsyncContextManager[Any], received: Received) -> AsyncIterator[Any]:
    """Open the transport of a client, and record the notifications on it."""
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with transport as opened, anyio.create_task_group() as tasks:

        async def relay() -> None:
            async with send:
                async for message in opened[0]:
                    assert isinstance(message, SessionMessage), message
                    if isinstance(message.message, JSONRPCNotification):
                        received.add(message.message)
                    await send.send(message)

        tasks.start_soon(relay)
        yield receive, opened[1]
        tasks.cancel_scope.cancel()
