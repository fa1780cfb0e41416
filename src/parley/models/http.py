"""The HTTP client of the process, and streamed replies.

Knows connections, timeouts and their errors. Does not know providers, keys or retries: `endpoint.py` does. The HTTP
library is the slowest import of all and is loaded in a thread, so that only the first request waits for it.
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

from parley.common.os_errors import with_limit
from parley.common.threads import start_thread
from parley.errors import CannotConnect, ModelStreamBroken
from parley.models.errors import ConnectionLost
from parley.version import __version__

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Http", "Reply"]

CONNECT_SECONDS: Final = 30
"""How long a provider may take to accept a connection: enough for a distant, busy one, and short enough for a
retry while the user waits."""

FINISH_SECONDS: Final = 0.2
"""How long to wait for the end of a body whose content is complete. It usually arrives with the last bytes; a
server that delays it costs this pause and a new connection."""

REFUSAL_SECONDS: Final = 5
"""How long to wait for the body of a refusal, which contains only an explanation."""

REFUSAL_BYTES: Final = 4096
"""How much of the body of a refusal is read."""

POLITE_SECONDS: Final = 0.0005
"""How long the thread that loads the library may hold the interpreter lock at a time."""

SILENT: Final = "idle timeout waiting for SSE"
BROKEN: Final = "the answer broke off"

LOOK_SECONDS: Final = 1.0
"""How often a silent reply is checked: the library does not always report a lost connection."""


class Http:
    """The HTTP client of the whole process. It opens nothing until the first request."""

    def __init__(self) -> None:
        self._library: Future[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    def warm_up(self) -> None:
        """Start to load the HTTP library in a thread."""
        with suppress(MemoryError, RuntimeError):  # no thread could be started: the first request retries
            self._load()

    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, idle_seconds: float, environ: Mapping[str, str]
    ) -> Reply:
        """Send `body`, and return the reply when its head has arrived, whatever its status.

        The caller closes the reply. Cancelling closes the connection. `environ` names the proxies.

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
                    data=_Body(body),  # so that a large body is sent in pieces
                    headers=headers,
                    allow_redirects=False,  # a redirect must not receive keys
                    proxy=_proxy(url, environ),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                )
        except aiohttp.ConnectionTimeoutError:
            raise CannotConnect(_shown(url), "no answer in time") from None
        except TimeoutError:
            raise ModelStreamBroken(SILENT) from None
        # The library's errors hold the request with its keys: none of them is chained or passed on.
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
        """Close every connection, and fail running requests.

        Waits for the library to load: OpenSSL crashes if the process ends while it reads certificates.
        """
        if self._library is not None:
            await asyncio.gather(asyncio.wrap_future(self._library), return_exceptions=True)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _load(self) -> Future[None]:
        library = self._library
        if library is None or (library.done() and library.exception() is not None):
            library = Future[None]()
            library.set_running_or_notify_cancel()  # a cancelled request does not cancel it
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
    """The body of a request as a file object.

    The HTTP library calls `getbuffer` to learn the size, for which `io.BytesIO` would copy the whole body.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._bytes = body

    def getbuffer(self) -> memoryview:
        return memoryview(self._bytes)


class Reply:
    """The reply to one request: its head, and a body that may still be streamed."""

    def __init__(self, response: aiohttp.ClientResponse, idle_seconds: float) -> None:
        self._response, self._idle_seconds = response, idle_seconds
        self.status = response.status
        self.reason = response.reason or ""
        self.retry_after = response.headers.get("retry-after")

    async def read(self, *, within_seconds: float | None = None) -> bytes:
        """Return the bytes received since the last call, waiting for some; empty at the end of the body.

        Raises:
            ModelStreamBroken: the connection was lost, or nothing came within the idle timeout.
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
        """Return whether the connection was lost before the body ended; the library does not always report it."""
        connection = self._response.connection
        return connection is not None and (connection.transport is None or connection.transport.is_closing())

    async def beginning(self) -> bytes:
        """Read the first `REFUSAL_BYTES` of the body, or as many as arrive."""
        body = b""
        try:
            async with asyncio.timeout(REFUSAL_SECONDS):
                while len(body) < REFUSAL_BYTES and (data := await self.read()):
                    body += data
        except (TimeoutError, ModelStreamBroken):
            pass  # a part of it explains enough
        return body[:REFUSAL_BYTES]

    async def finish(self) -> None:
        """Wait a moment for the end of the body, so that the connection can be reused."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                while await self.read():
                    pass
        except (TimeoutError, ModelStreamBroken):
            pass  # not reusable: `close` closes the connection

    def close(self) -> None:
        """Close the connection, or return it to the pool if the body has ended."""
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


def _proxy(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy that an environment names for a URL; a name in lower case wins.

    The library's own look-up would read the environment of this process and passwords from `~/.netrc`, and refuse
    requests that have a key.
    """
    named = {name: value for name, value in environ.items() if value and name[-6:].lower() == "_proxy"}
    if not named:
        return None
    from urllib.parse import urlsplit  # loaded with the HTTP library

    proxies = {name[:-6].lower(): value for name, value in sorted(named.items())}  # capitals come first
    if "REQUEST_METHOD" in environ and "http_proxy" not in environ:
        proxies.pop("http", None)  # a CGI program gets `HTTP_PROXY` from a header
    parts = urlsplit(url)
    if parts.hostname is None or _needs_no_proxy(parts.hostname, parts.netloc, proxies.get("no", "")):
        return None
    return proxies.get(parts.scheme)


def _needs_no_proxy(host: str, host_with_port: str, without: str) -> bool:
    """Return whether the list of `no_proxy` has a host, or a domain that it is in; `*` is every host."""
    for name in (one.strip().lstrip(".").lower() for one in without.split(",")):
        if name == "*" or (name and any(f".{one}".endswith(f".{name}") for one in (host, host_with_port.lower()))):
            return True
    return False


def _shown(url: str) -> str:
    """Return the URL without the parts that may hold secrets."""
    from urllib.parse import urlsplit, urlunsplit  # loaded with the HTTP library

    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _in_words(error: Exception) -> str:
    """Describe an error without URLs or headers."""
    import aiohttp

    match error:
        case aiohttp.InvalidURL():
            return "invalid URL"
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
