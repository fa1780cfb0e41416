"""A whole server in this process that serves HTTP on the loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.clients.http_client import HttpClient
from kit.clients.modern_client import ModernHttpClient
from kit.clients.page_client import PageClient
from kit.servers.empty_database import provide_database
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.http_choice import HttpChoice
from parley.app.http_service import HttpService
from parley.app.serving import Server
from parley.app.tokens import create_token
from parley.ports.store import RoleName
from parley.server.http.tokens import StoredTokens
from parley.testing import ScriptedModel
from parley.testing.home import Home
from parley.wire.ids import ConversationId

__all__ = ["HttpServer"]


class HttpServer:
    """A server that serves HTTP:

    `async with HttpServer(model, home) as server`. Its clients are closed at the end.
    """

    def __init__(
        self,
        model: ScriptedModel,
        home: Path,
        *,
        config: str = "",
        choice: HttpChoice | None = None,
        env: Mapping[str, str] | None = None,
        page_files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Create the server. `page_files` replaces the files of the web page."""
        self.files = Home(model, home=home, config=config, env=env or {})
        self._page_files = page_files
        self._choice = choice or HttpChoice(creates_token=True)
        self._clients = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.files.open()
        provide_database(self.files.environ)
        self.server = Server(environ=self.files.environ, server_dir=str(self.files.work), is_resident=True)
        self._later = 0.0
        self._tokens = StoredTokens(self.server.store, now=lambda: time.time() + self._later)
        self.service = HttpService(
            self.server.core,
            self.server.loader.serve_settings(),
            self._choice,
            on_connected=lambda client: None,
            store=self.server.store,
            tokens=self._tokens,
            nodes=self.server.nodes,
            page_files=self._page_files,
            open_push=self.server.open_push,
            now=lambda: time.time() + self._later,
        )
        self.url, self.token, self.work = self.service.url, self.service.token or "", self.files.work
        await self._tokens.reload()
        self.service.keep_current()
        await self._clients.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._clients.__aexit__(None, None, None)
            self.service.stop_accepting()
            await self.server.core.shutdown()
            await self.service.close()
            await self.server.close()
            self.files.close()

    async def create_token(
        self, name: str, role: RoleName, *, conversation: str | None = None, valid_seconds: float | None = None
    ) -> str:
        """Create a token, and make the server load it."""
        bound = None if conversation is None else ConversationId(conversation)
        token, _ = await create_token(
            self.server.store, name, role, conversation_id=bound, valid_seconds=valid_seconds
        )
        await self._tokens.reload()
        return token

    async def revoke_token(self, name: str) -> None:
        """Revoke a token, and make the server load the change."""
        await self.server.store.remove_token(name)
        await self._tokens.reload()

    async def let_tokens_expire(self, seconds: float) -> None:
        """Advance the clock of the tokens and of the sign-ins to the page."""
        self._later += seconds
        await self._tokens.reload()

    async def new_code(self) -> str:
        """Return a new one-time code for the page."""
        assert self.service.sign_ins is not None
        return await self.service.sign_ins.new_code()

    async def browser(self, *, origin: str | None = None, signs_in: bool = True, **credentials: Any) -> PageClient:
        """Return a browser that shows the page. Without credentials, it signs in with a new one-time code."""
        browser = await self._clients.enter_async_context(PageClient(self.url, origin=origin))
        if signs_in:
            signed_in = await browser.sign_in(**(credentials or {"code": await self.new_code()}))
            assert signed_in.status == 200, signed_in
        return browser

    async def client(self, **options: Any) -> HttpClient:
        """Return a new, initialized client."""
        client = await self._clients.enter_async_context(self._open(**options))
        await client.initialize()
        return client

    async def stranger(self, **options: Any) -> HttpClient:
        """Return a new client without a session."""
        return await self._clients.enter_async_context(self._open(**options))

    async def modern_client(self, **options: Any) -> ModernHttpClient:
        """Return a new client of 2026-07-28."""
        client = ModernHttpClient(self.url, **{"token": self.token, **options})
        return await self._clients.enter_async_context(client)

    @asynccontextmanager
    async def _open(self, **options: Any) -> AsyncIterator[HttpClient]:
        async with HttpClient(self.url, **{"token": self.token, **options}) as client:
            yield client
