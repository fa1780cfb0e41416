"""A receiver of webhook notifications on the loopback."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["Received", "WebhookReceiver"]


class Received(NamedTuple):
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class WebhookReceiver:
    """A receiver:

    `async with WebhookReceiver() as receiver`. It accepts every request, unless `statuses` contains a status.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.statuses: list[int] = []
        """The statuses of the next answers."""
        self.held: asyncio.Event | None = None
        """If set, answers wait for this event."""
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.held is not None:
            self.held.set()
        await self._runner.cleanup()

    async def wait_for(self, number: int) -> list[Received]:
        """Wait until this many requests have arrived, and return all requests."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(self.received) < number:
                self._arrived.clear()
                await self._arrived.wait()
        return self.received

    async def _answer(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(headers, await request.read()))
        self._arrived.set()
        if self.held is not None:
            await self.held.wait()
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"location": f"{self.url}/elsewhere"} if status == 307 else {})
