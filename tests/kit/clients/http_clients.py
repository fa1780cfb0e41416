"""Many HTTP clients that stream some conversations, lose their connections at random, and resume.

Each watcher records the positions that it received, so that they can be compared with the log.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from kit.clients.http_client import HttpClient
from kit.clients.http_events import logged, positions_in
from kit.clients.reading import until_state

__all__ = ["HttpClients", "Watcher"]


class Watcher:
    """A client with a session. It reads fast, slowly, or only at the end, and reconnects."""

    def __init__(self, client: HttpClient, conversations: Sequence[str], chance: random.Random) -> None:
        self.client, self.conversations, self._chance = client, conversations, chance
        self.positions: dict[str, list[int]] = {one: [] for one in conversations}
        self.connections = 0
        self._last_id: str | None = None
        self._is_slow, self._is_late = chance.random() < 0.2, chance.random() < 0.1

    async def begin(self) -> None:
        await self.client.initialize()
        for conversation in self.conversations:
            await self.client.call("conversationStream", conversation_id=conversation)

    async def watch(self, ended: asyncio.Event) -> None:
        """Read and reconnect until `ended` is set."""
        if self._is_late:
            await ended.wait()
        while not ended.is_set():
            await self._read(self._chance.choice((0, 300, 3000, 30_000)), ended)

    async def catch_up(self, expected: dict[str, list[int]]) -> None:
        """Read until all expected positions have arrived, or an unexpected position arrives."""
        while all(self.positions[one] == expected[one][: len(self.positions[one])] for one in self.conversations):
            if all(self.positions[one] == expected[one] for one in self.conversations):
                return
            await self._read(None, None, expected)

    async def _read(
        self, most: int | None, ended: asyncio.Event | None, expected: dict[str, list[int]] | None = None
    ) -> None:
        """Open the GET stream, read at most `most` bytes, and then cut the connection."""
        self.connections += 1
        http, url = self.client._http, self.client.url
        async with http.get(url, headers=self.client.headers(Last_Event_ID=self._last_id)) as response:
            assert response.status == 200, response
            rest, size = b"", 0
            while most is None or size < most:
                if self._is_slow:
                    await asyncio.sleep(self._chance.uniform(0, 0.05))
                data = await _next(response.content.readany(), ended)
                if not data:
                    break
                if most is not None:
                    data = data[: most - size]
                size += len(data)
                *blocks, rest = (rest + data).split(b"\n\n")
                for block in blocks:
                    self._take(block)
                if expected is not None and all(
                    len(self.positions[one]) >= len(expected[one]) for one in self.conversations
                ):
                    break
            response.close()

    def _take(self, block: bytes) -> None:
        event_id, message = None, None
        for line in block.split(b"\n"):
            if line.startswith(b"id: "):
                event_id = line[4:].decode()
            elif line.startswith(b"data: "):
                message = json.loads(line[6:])
        if message is None:
            return
        if event_id is not None:
            self._last_id = event_id
        named = message.get("params", {}).get("_meta", {}).get("conversationId")
        for conversation in self.conversations if named is None else [named]:
            self.positions[conversation] += positions_in([message], conversation)


async def _next(reading: Any, ended: asyncio.Event | None) -> bytes:
    """Return the next bytes; no bytes if `ended` is set first."""
    if ended is None:
        return bytes(await reading)
    tasks = [asyncio.ensure_future(reading), asyncio.ensure_future(ended.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    read, _ = await asyncio.gather(*tasks, return_exceptions=True)
    return read if isinstance(read, bytes) else b""


class HttpClients:
    """A group of clients that watch, and one client that sends messages: `async with HttpClients(...) as group`."""

    def __init__(self, url: str, token: str, *, clients: int, conversations: int, seed: int) -> None:
        self._url, self._token = url, token
        self._clients, self._conversations, self._chance = clients, conversations, random.Random(seed)
        self._stack = AsyncExitStack()
        self.watchers: list[Watcher] = []
        self.conversations: list[str] = []

    async def __aenter__(self) -> HttpClients:
        await self._stack.__aenter__()
        self.writer = await self._client()
        await self.writer.initialize()
        self.conversations = [await self.writer.create() for _ in range(self._conversations)]
        for number in range(self._clients):
            chance = random.Random(self._chance.random())
            own = chance.sample(self.conversations, min(len(self.conversations), chance.choice((1, 1, 2, 3))))
            client = await self._client(receive_bytes=4096 if number % 7 == 0 else None)
            self.watchers.append(Watcher(client, own, chance))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.__aexit__(None, None, None)

    async def _client(self, **options: Any) -> HttpClient:
        return await self._stack.enter_async_context(HttpClient(self._url, token=self._token, **options))

    async def run(self, *, messages: int) -> dict[str, list[int]]:
        """Send messages to random conversations while the watchers watch; return the positions of each log."""
        ended = asyncio.Event()
        for some in _chunks(self.watchers, 50):
            await asyncio.gather(*(watcher.begin() for watcher in some))
        async with asyncio.TaskGroup() as tasks:
            for watcher in self.watchers:
                tasks.create_task(watcher.watch(ended))
            targets = [self._chance.choice(self.conversations) for _ in range(messages)]
            for some_targets in _chunks(targets, 10):
                await asyncio.gather(*(self._talk(one) for one in dict.fromkeys(some_targets)))
            ended.set()
        expected = {one: await logged(self.writer, one) for one in self.conversations}
        await asyncio.gather(*(watcher.catch_up(expected) for watcher in self.watchers))
        return expected

    async def _talk(self, conversation: str) -> None:
        await self.writer.say(conversation, "go on")
        await until_state(self.writer, conversation, "idle")


def _chunks(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[first : first + size] for first in range(0, len(values), size)]
