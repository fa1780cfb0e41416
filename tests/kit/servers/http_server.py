"""A whole server in this process that serves HTTP on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.clients.http_client import HttpClient
from kit.system.commands import PATIENCE_SECONDS
from parley.app.home_key import home_key
from parley.app.http_choice import HttpChoice
from parley.app.http_service import HttpService
from parley.app.serving import Server
from parley.testing import ScriptedModel
from parley.testing.home import Home

__all__ = ["HttpServer"]


class HttpServer:
    """The server: `async with HttpServer(model, home) as server`. Its clients are closed at the end."""

    def __init__(
        self, model: ScriptedModel, home: Path, *, config: str = "", choice: HttpChoice | None = None
    ) -> None:
        self._files = Home(model, home=home, config=config)
        self._choice = choice or HttpChoice(creates_token=True)
        self._clients = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._files.open()
        self.server = Server(environ=self._files.environ, server_dir=str(self._files.work))
        self.service = HttpService(
            self.server.core,
            self.server.loader.serve_settings(),
            self._choice,
            key=home_key(self.server.loader.home),
            on_connected=lambda client: None,
        )
        self.url, self.token, self.work = self.service.url, self.service.token or "", self._files.work
        await self._clients.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._clients.__aexit__(None, None, None)
            self.service.stop_accepting()
            await self.server.core.shutdown()
            await self.service.close()
            await self.server.close()
            self._files.close()

    async def client(self, **options: Any) -> HttpClient:
        """Return a new client, which is initialized."""
        client = await self._clients.enter_async_context(self._open(**options))
        await client.initialize()
        return client

    async def stranger(self, **options: Any) -> HttpClient:
        """Return a new client without a session."""
        return await self._clients.enter_async_context(self._open(**options))

    @asynccontextmanager
    async def _open(self, **options: Any) -> AsyncIterator[HttpClient]:
        async with HttpClient(self.url, **{"token": self.token, **options}) as client:
            yield client
