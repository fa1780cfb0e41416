"""The HTTP client of the process. The client streams replies. This module handles connections, timeouts and their
errors. `endpoint.py` handles providers, keys and retries. The HTTP library is slow to import, so a thread loads it.
Only the first request waits until the library is loaded.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from parley.common.interpreter_lock import short_switch_interval
from parley.common.os_errors import connection_detail, with_limit
from parley.common.proxies import proxy_for
from parley.common.threads import start_thread
from parley.errors import CannotConnect, ModelStreamBroken
from parley.models.errors import ConnectionLost
from parley.version import __version__

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Http", "Reply"]

CONNECT_SECONDS: Final = 30
"""The maximum time, in seconds, that a provider may take to accept a connection. The time is long enough for a
distant, busy provider, and short enough for a retry while the user is waiting.
"""

FINISH_SECONDS: Final = 0.2
"""The maximum time, in seconds, to wait for the end of a body whose content is complete. The end usually arrives
with the last bytes. If the time expires, the connection is closed and the next request opens a new connection.
"""

REFUSAL_SECONDS: Final = 5
"""The maximum time, in seconds, to wait for the body of an error response. Such a body contains only an explanation
of the error.
"""

REFUSAL_BYTES: Final = 4096
"""The maximum number of bytes that are read from the body of an error response."""

SILENT: Final = "idle timeout waiting for SSE"
BROKEN: Final = "the response broke off"

CHECK_SECONDS: Final = 1.0
"""The time, in seconds, between two checks for a lost connection while no bytes arrive. The checks are needed
because the HTTP library does not always report that a connection was lost.
"""


class Http:
    """The HTTP client of the whole process. It opens no connection before the first request."""

    def __init__(self) -> None:
        self._library: Future[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    def warm_up(self) -> None:
        """Begin to load the HTTP library in a thread, so that the first request waits less or not at all."""
        with suppress(MemoryError, RuntimeError):  # no thread could be started, and the first request tries again
            self._load()

    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, idle_seconds: float, environ: Mapping[str, str]
    ) -> Reply:
        """Send a POST request, and return the reply when its headers have arrived. The reply may have any status.

        The caller closes the reply. If this call is cancelled, the connection is closed. `idle_seconds` is the idle
        timeout: the maximum time, in seconds, without a byte from the provider. `environ` holds the environment
        variables that select a proxy.

        Raises:
            CannotConnect: no connection could be established.
            ConnectionLost: the connection was closed before the reply.
            ModelStreamBroken: the provider was silent for `idle_seconds`.
        """
        # The body is a file object, so that a large body is sent in pieces.
        return await self._send("POST", url, headers, _Body(body), idle_seconds, environ)

    async def get(
        self, url: str, *, headers: Mapping[str, str], idle_seconds: float, environ: Mapping[str, str]
    ) -> Reply:
        """Send a GET request. The arguments, the result and the errors have the same meaning as for `post`."""
        return await self._send("GET", url, headers, None, idle_seconds, environ)

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: _Body | None,
        idle_seconds: float,
        environ: Mapping[str, str],
    ) -> Reply:
        session = self._session or await self._open_session()
        import aiohttp

        try:
            async with asyncio.timeout(idle_seconds):
                response = await session.request(
                    method,
                    url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,  # the target of a redirect must not get the keys
                    proxy=proxy_for(url, environ),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                )
        except aiohttp.ConnectionTimeoutError:
            raise CannotConnect(_shown(url), "no response in time") from None
        except TimeoutError:
            raise ModelStreamBroken(SILENT) from None
        # The library's errors contain the request with its keys, so they must not be chained or passed on.
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
        """Close every connection. Requests that are still running then fail.

        If the HTTP library is being loaded, first wait until it is loaded. OpenSSL crashes if the process exits
        while OpenSSL is reading certificates.
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
            library.set_running_or_notify_cancel()  # a cancelled request must not cancel the import
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

    The HTTP library calls `getbuffer` to get the size of the body. This class overrides the method, because
    `io.BytesIO.getbuffer` would copy the whole body.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._bytes = body

    def getbuffer(self) -> memoryview:
        return memoryview(self._bytes)


class Reply:
    """The HTTP response to one request: its status and headers, and a body that may still be streamed."""

    def __init__(self, response: aiohttp.ClientResponse, idle_seconds: float) -> None:
        self._response, self._idle_seconds = response, idle_seconds
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = response.headers

    async def read(self, *, within_seconds: float | None = None) -> bytes:
        """Return the bytes received since the last call. If there are none, wait for bytes. Return empty bytes at
        the end of the body.

        Raises:
            ModelStreamBroken: the connection was lost, or no bytes arrived within `within_seconds`, by default the
                idle timeout.
        """
        import aiohttp

        left = self._idle_seconds if within_seconds is None else within_seconds
        try:
            while True:
                check_seconds = min(left, CHECK_SECONDS)
                try:
                    async with asyncio.timeout(check_seconds):
                        return await _received(self._response.content)
                except TimeoutError:
                    left -= check_seconds
                    if left <= 0:
                        raise ModelStreamBroken(SILENT) from None
                    if self._is_lost():
                        raise ModelStreamBroken(BROKEN) from None
        except aiohttp.ClientPayloadError:
            raise ModelStreamBroken(BROKEN) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ModelStreamBroken(_in_words(error)) from None

    def _is_lost(self) -> bool:
        """Return whether the connection was lost before the body ended. The HTTP library does not always report
        such a loss.
        """
        connection = self._response.connection
        return connection is not None and (connection.transport is None or connection.transport.is_closing())

    async def beginning(self) -> bytes:
        """Return the first `REFUSAL_BYTES` bytes of the body. Return fewer bytes if the body is shorter or the
        other bytes do not arrive within `REFUSAL_SECONDS`.
        """
        body = b""
        try:
            async with asyncio.timeout(REFUSAL_SECONDS):
                while len(body) < REFUSAL_BYTES and (data := await self.read()):
                    body += data
        except (TimeoutError, ModelStreamBroken):
            pass  # the received part is enough for an error message
        return body[:REFUSAL_BYTES]

    async def finish(self) -> None:
        """Wait up to `FINISH_SECONDS` for the end of the body, so that the connection can be reused."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                while await self.read():
                    pass
        except (TimeoutError, ModelStreamBroken):
            pass  # the connection cannot be reused, and `close` closes it

    def close(self) -> None:
        """Close the connection, or return it to the pool if the body has ended."""
        self._response.close()


async def _received(content: aiohttp.StreamReader) -> bytes:
    """Return all bytes of the body that have arrived. If there are none, wait for bytes. Return empty bytes at the
    end of the body.

    The library stores each HTTP chunk separately, and removes the chunks one by one. A provider may send each token
    in its own chunk, so removing the chunks would take a quarter of the time of a turn. Therefore, this function
    joins the chunks first. It uses a private attribute, because the library has no public method for this purpose.
    If the attribute is not a deque, the library removes the chunks.
    """
    first = b""
    while not first and not content.at_eof():
        first, _ = await content.readchunk()
    if content.at_eof():
        return first
    chunks = getattr(content, "_buffer", None)
    if isinstance(chunks, deque) and len(chunks) > 1:
        joined = b"".join(chunks)
        chunks.clear()
        chunks.append(joined)
    return first + content.read_nowait()


def _import_library(library: Future[None]) -> None:
    try:
        with short_switch_interval():
            import aiohttp  # noqa: F401 - loading it is the purpose
    except BaseException as error:
        library.set_exception(error)
    else:
        library.set_result(None)


def _shown(url: str) -> str:
    """Return a URL for error messages, without user, password, query and fragment, which may contain secrets."""
    from urllib.parse import urlsplit, urlunsplit  # imported here: the HTTP library has already loaded this module

    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _in_words(error: Exception) -> str:
    """Return a description of an error of the HTTP library, without URLs or headers."""
    import aiohttp

    match error:
        case aiohttp.InvalidURL():
            return "invalid URL"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed"
        case aiohttp.ClientSSLError():
            return connection_detail(error.os_error)
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy cannot be reached: {connection_detail(error.os_error)}"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused the connection with status {error.status}"
        case aiohttp.ClientResponseError():
            return "the response is not HTTP"
        case OSError(errno=int(number)) if number > 0:
            return with_limit(os.strerror(number), number)
        case OSError(strerror=str(text)):
            return text
        case _:
            return str(error)
