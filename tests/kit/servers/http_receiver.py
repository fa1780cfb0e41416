"""An HTTP server on the loopback that stores the requests which it receives."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgspec
from aiohttp import web

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["HttpReceiver", "Received"]


class Received(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class HttpReceiver:
    """A server that answers every request with the status `accepted`, unless `statuses` contains a status. Use it
    with `async with`.
    """

    def __init__(self, *, accepted: int) -> None:
        self._accepted: Final = accepted
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
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=await self.tls()).start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.held is not None:
            self.held.set()
        await self._runner.cleanup()

    async def tls(self) -> ssl.SSLContext | None:
        """Return the TLS configuration; None if the server uses no TLS."""
        return None

    async def wait_for(self, number: int) -> list[Received]:
        """Wait until this many requests have arrived, and return all requests."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(self.received) < number:
                self._arrived.clear()
                await self._arrived.wait()
        return self.received

    async def _answer(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.path, headers, await request.read()))
        self._arrived.set()
        if self.held is not None:
            await self.held.wait()
        status = self.statuses.pop(0) if self.statuses else self._accepted
        return web.Response(status=status, headers={"location": "/elsewhere"} if status == 307 else {})
