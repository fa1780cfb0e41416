"""One HTTP client for the whole process, and its replies as they come.

Knows connections, silence, and the ways in which both go wrong. Knows no provider, no key and no
second try: `endpoint.py` does. The HTTP library is the heaviest import of all and is loaded in a
thread, so that nobody waits for it but the first request.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from parley.common.os_errors import with_limit
from parley.common.threads import start_thread
from parley.errors import CannotConnect, ModelStreamBroken
from parley.models.errors import ConnectionLost
from parley.version import __version__

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Http", "Reply"]

CONNECT_SECONDS: Final = 30
"""How long a provider may take to accept a connection: ample for a far and busy one, and short
enough to leave a person hope for the next try."""

FINISH_SECONDS: Final = 0.2
"""How long the end of a body that is no longer needed is waited for. It is on its way with the
last bytes that were; a server that holds it back costs this pause and a new connection."""

REFUSAL_SECONDS: Final = 5
"""How long the body of a refusal is waited for; it only explains."""

REFUSAL_BYTES: Final = 4096
"""How much of such a body is read."""

POLITE_SECONDS: Final = 0.0005
"""How long loading the library may keep everybody else from running, at a time."""

SILENT: Final = "idle timeout waiting for SSE"
BROKEN: Final = "the answer broke off"

LOOK_SECONDS: Final = 1.0
"""How often a reply that is silent is looked at: a connection may be lost without a word."""


class Http:
    """The way out. One for the whole process; made early, it does nothing until it is needed."""

    def __init__(self) -> None:
        self._library: Future[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[tuple[str, str | None], str | None] = {}
        """By scheme and host."""

    def warm_up(self) -> None:
        """Begin to load the HTTP library in a thread; the first request waits for the rest, if any."""
        with suppress(MemoryError, RuntimeError):  # no thread can be started: the first request tries again
            self._load()

    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes, idle_seconds: float) -> Reply:
        """Send `body`, and return the reply once its head has come, whatever its status.

        The caller closes the reply. Cancelling closes the connection.

        Raises:
            CannotConnect: no connection could be made.
            ConnectionLost: the connection was closed before the reply.
            ModelStreamBroken: the provider was silent for `idle_seconds`.
        """
        session = self._session or await self._open_session()
        import aiohttp

        try:
            async with asyncio.timeout(idle_seconds):
                response = await session.post(
                    url,
                    data=_Body(body),  # a large body leaves in pieces
                    headers=headers,
                    allow_redirects=False,  # keys do not follow one
                    proxy=self._proxy(url),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                )
        except aiohttp.ConnectionTimeoutError:
            raise CannotConnect(_shown(url), "nobody answered in time") from None
        except TimeoutError:
            raise ModelStreamBroken(SILENT) from None
        # The library's own errors hold the request, keys and all: none of them travels on.
        except (
            aiohttp.ClientConnectorError,
            aiohttp.InvalidURL,
            aiohttp.NonHttpUrlClientError,
            ValueError,
        ) as error:
            raise CannotConnect(_shown(url), _in_words(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLost(_shown(url), _in_words(error)) from None
        return Reply(response, idle_seconds)

    async def close(self) -> None:
        """Close every connection. Requests that still run break off.

        Loading the library is waited for: OpenSSL crashes where a process ends while it reads its certificates.
        """
        if self._library is not None:
            await asyncio.gather(asyncio.wrap_future(self._library), return_exceptions=True)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _proxy(self, url: str) -> str | None:
        """Looked up once where only the environment says so: it is the same until the process ends, and long."""
        parts = urlsplit(url)
        place = parts.scheme, parts.hostname
        if place not in self._proxies or sys.platform != "linux":
            self._proxies[place] = _proxy(*place)
        return self._proxies[place]

    def _load(self) -> Future[None]:
        library = self._library
        if library is None or (library.done() and library.exception() is not None):
            library = Future[None]()
            library.set_running_or_notify_cancel()  # a request that is cancelled does not cancel it
            start_thread(_import_library, library, name="import-http")
            self._library = library
        return library

    async def _open_session(self) -> aiohttp.ClientSession:
        await asyncio.wrap_future(self._load())
        if self._session is None:
            import aiohttp

            from parley.models.connections import connector

            self._session = aiohttp.ClientSession(
                connector=connector(),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": f"parley/{__version__}"},
            )
        return self._session


class _Body(io.BytesIO):
    """The body of a request as a file.

    The HTTP library calls `getbuffer` to learn the size, for which `io.BytesIO` would copy the whole body.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._bytes = body

    def getbuffer(self) -> memoryview:
        return memoryview(self._bytes)


class Reply:
    """The answer to one request: its head, and a body that may still be coming."""

    def __init__(self, response: aiohttp.ClientResponse, idle_seconds: float) -> None:
        self._response, self._idle_seconds = response, idle_seconds
        self.status = response.status
        self.reason = response.reason or ""
        self.retry_after = response.headers.get("retry-after")

    async def read(self, *, within_seconds: float | None = None) -> bytes:
        """All that has come since the last call, or what comes next; nothing at the orderly end.

        Raises:
            ModelStreamBroken: the body broke off, or nothing came for as long as is allowed.
        """
        import aiohttp

        left = self._idle_seconds if within_seconds is None else within_seconds
        try:
            while True:
                look_seconds = min(left, LOOK_SECONDS)
                try:
                    async with asyncio.timeout(look_seconds):
                        return await self._response.content.readany()
                except TimeoutError:
                    left -= look_seconds
                    if left <= 0:
                        raise ModelStreamBroken(SILENT) from None
                    if self._is_lost():
                        raise ModelStreamBroken(BROKEN) from None
        except aiohttp.ClientPayloadError:
            raise ModelStreamBroken(BROKEN) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ModelStreamBroken(_in_words(error)) from None

    def _is_lost(self) -> bool:
        """The connection is gone though the body has not ended: the library does not always say so."""
        connection = self._response.connection
        return connection is not None and (connection.transport is None or connection.transport.is_closing())

    async def beginning(self) -> bytes:
        """The first `REFUSAL_BYTES` of the body, or as much of them as can be had."""
        body = b""
        try:
            async with asyncio.timeout(REFUSAL_SECONDS):
                while len(body) < REFUSAL_BYTES and (data := await self.read()):
                    body += data
        except (TimeoutError, ModelStreamBroken):
            pass  # what came explains better than nothing
        return body[:REFUSAL_BYTES]

    async def finish(self) -> None:
        """Wait a moment for the end of the body, so that the connection can serve the next request."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                while await self.read():
                    pass
        except (TimeoutError, ModelStreamBroken):
            pass  # then it cannot; closing will end it

    def close(self) -> None:
        """Close the connection at once, unless the body has ended: then it stays for the next request."""
        self._response.close()


def _import_library(library: Future[None]) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(POLITE_SECONDS)
    try:
        import aiohttp  # noqa: F401 - loading it is the purpose
    except BaseException as error:
        library.set_exception(error)
    else:
        library.set_result(None)
    finally:
        sys.setswitchinterval(before)


def _proxy(scheme: str, host: str | None) -> str | None:
    """The proxy that the environment names for this host.

    The library could look it up itself, but would then also look for passwords in `~/.netrc` and
    refuse requests that have a key already.
    """
    from urllib.request import getproxies, proxy_bypass  # loaded with the HTTP library

    if host is None or proxy_bypass(host):
        return None
    return getproxies().get(scheme)


def _shown(url: str) -> str:
    """The address as people may see it: without the parts that may hold secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _in_words(error: Exception) -> str:
    """What went wrong on the way, without addresses or headers."""
    import aiohttp

    match error:
        case aiohttp.InvalidURL():
            return "this is no address"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed"
        case aiohttp.ClientResponseError():
            return "the answer is not HTTP"
        case OSError(errno=int(number)) if number > 0:
            return with_limit(os.strerror(number), number)
        case OSError(strerror=str(text)):
            return text
        case _:
            return str(error)
