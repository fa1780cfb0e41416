"""The client side of Streamable HTTP: each message is a POST, and the response is JSON or a stream of events.

If the server sends event ids, a broken stream is resumed after the last event received. A compressed response body
raises an error, because a small body may expand to a large body. The first session imports the HTTP library in a
thread.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from msgspec import Struct

from parley.common.os_errors import connection_detail
from parley.common.proxies import is_on_this_computer, proxy_for
from parley.common.resolver import DaemonResolver
from parley.common.threads import begin_in_thread
from parley.rpc.errors import (
    CannotReach,
    HttpRefused,
    Redirected,
    SessionError,
    SessionLost,
    TooLarge,
    UnreadableAnswer,
)
from parley.rpc.incoming import decode
from parley.rpc.session import Outgoing
from parley.version import __version__
from parley.wire.http import LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID
from parley.wire.jsonrpc import RequestId, error_of
from parley.wire.sse import EventFramer, EventTooLong

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Receiver", "Reopening", "StreamableHttp"]

log: Final = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 30.0
"""The maximum time, in seconds, that a server may take to accept a connection. The caller limits the time for the
response.
"""

KEEP_SECONDS: Final = 2.0
"""The time in seconds for which an idle connection is kept. Most servers close idle connections after five seconds.
`KEEP_SECONDS` is shorter, so that no message is sent on a connection that the server is closing.
"""

REOPEN_SECONDS: Final = 0.5
"""The minimum delay, in seconds, before a stream is opened again, even if the server requests a shorter delay."""

RETRY_SECONDS: Final = 1.0
"""The delay in seconds before a stream is opened again, if the server does not request a delay."""

MAX_RETRY_SECONDS: Final = 30.0
"""The maximum delay in seconds before a stream is opened again, even if the server requests a longer delay."""

REOPEN_ATTEMPTS: Final = 2
"""The number of consecutive failures to open a stream after which the stream is given up."""

LARGE_BODY_BYTES: Final = 2**20
"""The size in bytes above which a request body is passed to the HTTP library as a file object. The library warns
about larger bodies that are not files.
"""

ORDER_SECONDS: Final = 5.0
"""The maximum number of seconds for which a message is delayed until the server has accepted the preceding
notification.
"""

FINISH_SECONDS: Final = 0.2
"""The maximum time in seconds to wait for the end of a response body after the JSON-RPC response in the body has
arrived. The connection can be reused only after the end of the body. After this time, the connection is closed.
"""

CHECK_SECONDS: Final = 1.0
"""The time, in seconds, between two checks for a lost connection while no data of a response arrives. The HTTP
library does not always report that a connection was lost.
"""

MAX_REFUSAL_BYTES: Final = 1024 * 1024
"""The maximum number of bytes that are read from the body of an HTTP error."""

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
SAME_REQUEST: Final = frozenset({307, 308})
"""The HTTP statuses of redirects that require the client to send the same request, with the same method and body,
to the new URL.
"""


class Receiver(Protocol):
    """Receives the messages from a server."""

    @property
    def limit(self) -> int | None:
        """The maximum size, in bytes, of the next message. None means no limit."""
        ...

    def receive(self, frame: bytes, *, of_request: RequestId | None = None) -> bool:
        """Handle a message from the server. Return whether the message is a response.

        `of_request` is the id of the request on whose stream the message arrived; None if the message arrived on a
        stream that belongs to no request.

        Raises:
            SessionError: the message cannot be decoded.
        """
        ...

    def fail(self, request_id: RequestId, error: SessionError) -> None: ...


class _Post(NamedTuple):
    """A request whose response is not complete yet."""

    task: asyncio.Task[None]
    has_head: asyncio.Event
    """An event that is set when the headers of the response have arrived."""


class Reopening(Struct, frozen=True, kw_only=True):
    """The delays and the number of attempts for opening a broken stream again."""

    seconds: float = RETRY_SECONDS
    """The delay in seconds before the next attempt, if the server does not request a delay."""
    least_seconds: float = REOPEN_SECONDS
    """The minimum delay in seconds before the next attempt, even if the server requests a shorter delay."""
    attempts: int = REOPEN_ATTEMPTS
    """The number of consecutive failures to open a stream after which the stream is given up."""


class StreamableHttp:
    """A session of Streamable HTTP with the server at one URL."""

    def __init__(
        self,
        url: str,
        receiver: Receiver,
        *,
        headers: Mapping[str, str],
        environ: Mapping[str, str],
        follow_within_origin: bool = False,
        reopening: Reopening = Reopening(),  # noqa: B008 - frozen
        idle_seconds: float | None = None,
        on_gone: Callable[[], None] = lambda: None,
        on_stream_lost: Callable[[SessionError], None] = lambda error: None,
    ) -> None:
        """Create a session. `headers` contains headers that are sent with each request to `url`. These headers are
        sent to no other origin. A proxy sees these headers only if it forwards the requests without encryption.
        Requests to this computer use no proxy.

        `environ` contains the environment variables that configure proxies. If `follow_within_origin` is True,
        redirects within the origin of `url` are followed; any other redirect raises `Redirected`. A stream without
        data for more than `idle_seconds` counts as broken; None means no limit. `reopening` contains the delays for
        opening broken streams again. `on_gone` is called when the server no longer knows the session.
        `on_stream_lost` is called when the stream for messages that belong to no request is broken and cannot be
        opened again.
        """
        self._url, self._receiver = url, receiver
        self._headers, self._environ = headers, environ
        self._follow_within_origin, self._reopening = follow_within_origin, reopening
        self._idle_seconds, self._on_gone, self._on_stream_lost = idle_seconds, on_gone, on_stream_lost
        self._client: aiohttp.ClientSession | None = None
        self._session_id: str | None = None
        self._version: str | None = None
        self._is_modern = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._posts: dict[RequestId, _Post] = {}
        self._last_notice: asyncio.Task[None] | None = None

    # --- beginning and end ---------------------------------------------------------------

    async def start(self) -> None:
        """Load the HTTP library. No request is sent yet."""
        await _load_library()
        import aiohttp

        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEP_SECONDS, resolver=cast(Any, DaemonResolver())
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # No headers here: the library would also send them to a proxy.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        )

    async def flush(self, *, within_seconds: float) -> None:
        """Wait until the server has received all messages, but not longer than `within_seconds`."""
        heads = [asyncio.create_task(post.has_head.wait()) for post in self._posts.values()]
        notices = [] if self._last_notice is None else [self._last_notice]
        if heads or notices:
            await asyncio.wait([*heads, *notices], timeout=within_seconds)
        for head in heads:
            head.cancel()

    async def close(self, *, within_seconds: float) -> None:
        """End the session on the server within at most `within_seconds`, and close all connections."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client, self._client = self._client, None
        if client is None:
            return
        try:
            if self._session_id is not None:
                async with asyncio.timeout(within_seconds), self._request("DELETE", {}, client=client):
                    pass
        except (SessionError, TimeoutError):
            pass  # the server ends the session later by itself
        finally:
            await client.close()

    # --- messages ------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def send(self, message: Outgoing) -> None:
        if (request_id := message.id) is None:
            if not self._is_modern:  # MCP 2026-07-28 has only requests; closing the response cancels a request
                self._last_notice = self._add_task(self._post(message, after=self._last_notice))
            return
        has_head = asyncio.Event()
        task = self._add_task(self._post(message, after=self._last_notice, has_head=has_head))
        post = self._posts[request_id] = _Post(task, has_head)

        def forget(_: asyncio.Task[None]) -> None:
            has_head.set()
            if self._posts.get(request_id) is post:
                del self._posts[request_id]

        task.add_done_callback(forget)

    def cancel(self, request_id: RequestId, notice: bytes | None) -> None:
        if (post := self._posts.get(request_id)) is None:
            return
        if notice is None or self._is_modern:
            post.task.cancel()
        else:
            self._add_task(self._cancel(post, notice))

    async def _cancel(self, post: _Post, notice: bytes) -> None:
        """Send `notice`, which cancels the request `post`, as soon as that request has reached the server. Then
        stop reading its response.
        """
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                await post.has_head.wait()
        except TimeoutError:
            pass
        await self._post(Outgoing(notice))
        post.task.cancel()

    def set_version(self, version: str, *, is_modern: bool) -> None:
        self._version, self._is_modern = version, is_modern

    def listen(self) -> None:
        if self._session_id is not None:
            self._add_task(self._listen(self._last_notice))

    def _add_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _post(
        self, message: Outgoing, *, after: asyncio.Task[None] | None = None, has_head: asyncio.Event | None = None
    ) -> None:
        if after is not None and not after.done():
            await asyncio.wait([after], timeout=ORDER_SECONDS)
        failures = 0
        while True:
            try:
                return await self._exchange(message, has_head)
            except SessionError as error:
                if message.id is not None:
                    return self._receiver.fail(message.id, error)
                failures += 1
                if not isinstance(error, SessionLost) or failures > self._reopening.attempts:
                    log.debug("a message was not accepted: %s", error)
                    return None
            # A notification or a response may safely be sent twice.
            await asyncio.sleep(self._reopening.least_seconds)

    async def _exchange(self, message: Outgoing, has_head: asyncio.Event | None) -> None:
        headers = {"Content-Type": JSON, "Accept": f"{JSON}, {EVENT_STREAM}", **message.headers}
        async with self._request("POST", headers, body=message.frame) as response:
            if has_head is not None:
                has_head.set()
            self._note_head(response)
            if (request_id := message.id) is None:
                return
            kind = _content_type(response)
            if response.status >= HTTPStatus.BAD_REQUEST:
                await self._read_refusal(response, request_id, kind)
                return
            if response.status == HTTPStatus.ACCEPTED:
                raise HttpRefused(response.status, response.reason or "")
            if kind == JSON:
                body = await _body(response, self._receiver.limit)
                if not _answers(body, request_id):
                    raise UnreadableAnswer
                self._receiver.receive(body, of_request=request_id)
                return
            if kind != EVENT_STREAM:
                raise UnreadableAnswer
            events = EventFramer(self._receiver.limit)
            if await self._read_events(response, events, request_id):
                return
        await self._resume(events, request_id)

    def _note_head(self, response: aiohttp.ClientResponse) -> None:
        if self._version is None and response.status < HTTPStatus.BAD_REQUEST:
            self._session_id = response.headers.get(SESSION_ID, self._session_id)
        if response.status == HTTPStatus.NOT_FOUND and self._session_id is not None:
            self._on_gone()

    async def _read_refusal(self, response: aiohttp.ClientResponse, request_id: RequestId, kind: str) -> None:
        """Pass the JSON-RPC error in the body of an HTTP error response to the receiver. `kind` is the media type
        of the body.

        Raises:
            HttpRefused: the body contains no JSON-RPC error.
        """
        if kind == JSON:
            try:
                body = await _body(response, MAX_REFUSAL_BYTES)
                if error_of(decode(body, MAX_REFUSAL_BYTES)) is not None:
                    self._receiver.receive(body, of_request=request_id)
                    return
            except (UnreadableAnswer, TooLarge, SessionLost):
                pass
        raise HttpRefused(response.status, response.reason or "")

    async def _resume(self, events: EventFramer, request_id: RequestId) -> None:
        """Read the remaining events of an interrupted response from new streams. `events` contains the id of the
        last event that was received.

        Raises:
            SessionLost: the server sent no event ids, or the attempts to open a stream failed.
        """
        failures = 0
        while events.last_id is not None and not self._is_modern and failures < self._reopening.attempts:
            await asyncio.sleep(self._delay(events))
            try:
                async with self._open_stream(events.last_id) as response:
                    failures = 0
                    events.restart()
                    if await self._read_events(response, events, request_id):
                        return
            except SessionLost:
                failures += 1
        raise SessionLost

    # --- streams -------------------------------------------------------------------------

    async def _listen(self, before: asyncio.Task[None] | None) -> None:
        """Read the messages that belong to no request, as long as the server offers a stream for them. First wait
        for the task `before`, which sends the preceding notification; None if there is no such task.
        """
        if before is not None:
            await asyncio.wait([before], timeout=ORDER_SECONDS)
        events, failures = EventFramer(self._receiver.limit), 0
        error: SessionError = SessionLost()
        while failures < self._reopening.attempts:
            try:
                async with self._open_stream(events.last_id) as response:
                    failures = 0
                    events.restart()
                    await self._read_events(response, events, None)
            except SessionLost as lost:
                error = lost
                failures += 1
            except SessionError as refused:
                error = refused
                break
            await asyncio.sleep(self._delay(events))
        log.debug("no stream of messages: %s", error)
        self._on_stream_lost(error)

    @asynccontextmanager
    async def _open_stream(self, last_id: str | None) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Accept": EVENT_STREAM}
        if last_id is not None:
            headers[LAST_EVENT_ID] = last_id
        async with self._request("GET", headers) as response:
            if response.status != HTTPStatus.OK:
                raise HttpRefused(response.status, response.reason or "")
            if _content_type(response) != EVENT_STREAM:
                raise UnreadableAnswer
            yield response

    async def _read_events(
        self, response: aiohttp.ClientResponse, events: EventFramer, request_id: RequestId | None
    ) -> bool:
        """Pass the messages of a stream to the receiver. Return True when the response to the request `request_id`
        has arrived, and False if the stream ends before this response.

        If `request_id` is None, the stream belongs to no request. All its messages are then passed on, and the
        result is False.
        """
        try:
            async for chunk in _chunks(response, self._idle_seconds):
                for event in events.feed(chunk):
                    if not event.data:
                        continue  # an event without data only sets the event id
                    try:
                        is_answer = self._receiver.receive(event.data, of_request=request_id)
                    except UnreadableAnswer:
                        if request_id is not None:
                            raise
                        continue
                    if is_answer and request_id is not None:
                        await _finish(response)
                        return True
        except EventTooLong:
            raise TooLarge(self._receiver.limit or 0, "bytes") from None
        except SessionLost:
            pass
        return False

    def _delay(self, events: EventFramer) -> float:
        seconds = self._reopening.seconds if events.retry_seconds is None else events.retry_seconds
        return min(max(seconds, self._reopening.least_seconds), MAX_RETRY_SECONDS)

    # --- requests ------------------------------------------------------------------------

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        headers: Mapping[str, str],
        *,
        body: bytes | None = None,
        client: aiohttp.ClientSession | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send an HTTP request and yield the response when its headers have arrived.

        `client` is the HTTP client that sends the request; None means the default HTTP client of this object.

        Raises:
            CannotReach: no connection could be established.
            SessionLost: the connection was lost.
            Redirected: the server redirects to another URL.
        """
        response = await self._response(method, headers, body, client or self._client)
        try:
            if response.status in SAME_REQUEST and self._follow_within_origin and self._moved(response):
                response.close()
                response = await self._response(method, headers, body, client or self._client)
            if response.status in REDIRECTS and (location := response.headers.get("Location")):
                raise Redirected(location)
            yield response
        finally:
            response.release()

    async def _response(
        self, method: str, headers: Mapping[str, str], body: bytes | None, client: aiohttp.ClientSession | None
    ) -> aiohttp.ClientResponse:
        import aiohttp
        from multidict import CIMultiDict

        if client is None:
            raise SessionLost
        own = {
            "User-Agent": f"parley/{__version__}",
            "Accept-Encoding": "identity",
            SESSION_ID: self._session_id,
            PROTOCOL_VERSION: self._version,
        }
        sent = CIMultiDict(self._headers)
        sent.update({name: value for name, value in own.items() if value is not None})
        sent.update(headers)
        try:
            return await client.request(
                method,
                self._url,
                data=_in_pieces(body),
                headers=sent,
                allow_redirects=False,
                proxy=None if is_on_this_computer(self._url) else proxy_for(self._url, self._environ),
            )
        # The library's errors contain the request with its token, so they must not be chained or passed on.
        except aiohttp.ClientConnectorError as error:
            raise CannotReach(connection_detail(error.os_error)) from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise CannotReach(f"invalid URL {self._url!r}") from None
        except aiohttp.ConnectionTimeoutError:
            raise CannotReach("the server did not accept the connection in time") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise SessionLost from None

    def _moved(self, response: aiohttp.ClientResponse) -> bool:
        """If the target of a redirect has the same origin as the current URL, use the target for all further
        requests and return True. Otherwise return False.
        """
        from yarl import URL

        try:
            location = response.url.join(URL(response.headers.get("Location", "")))
            if location.origin() != response.url.origin():
                return False
        except ValueError:
            return False
        self._url = str(location)
        return True


def _in_pieces(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a request body as it is passed to the HTTP library: as a file object if the body is larger than
    `LARGE_BODY_BYTES`, and otherwise unchanged.
    """
    return io.BytesIO(body) if body is not None and len(body) > LARGE_BODY_BYTES else body


def _content_type(response: aiohttp.ClientResponse) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def _chunks(response: aiohttp.ClientResponse, idle_seconds: float | None = None) -> AsyncIterator[bytes]:
    """Yield the bytes of a response body as they arrive. If `idle_seconds` is None, the time without bytes is not
    limited.

    Raises:
        UnreadableAnswer: the body is compressed.
        SessionLost: the connection was lost, or no bytes arrived for `idle_seconds`.
    """
    import aiohttp

    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise UnreadableAnswer
    try:
        silent_seconds = 0.0
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    chunk = await response.content.readany()
            except TimeoutError:
                silent_seconds += CHECK_SECONDS
                is_silent = idle_seconds is not None and silent_seconds >= idle_seconds
                if is_silent or _is_lost(response):
                    raise SessionLost from None
                continue
            if not chunk:
                return
            silent_seconds = 0.0
            yield chunk
    except (aiohttp.ClientError, OSError, ValueError):
        raise SessionLost from None


def _is_lost(response: aiohttp.ClientResponse) -> bool:
    connection = response.connection
    return connection is not None and (connection.transport is None or connection.transport.is_closing())


async def _body(response: aiohttp.ClientResponse, limit: int | None) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in _chunks(response):
        parts.append(chunk)
        size += len(chunk)
        if limit is not None and size > limit:
            raise TooLarge(limit, "bytes")
    return b"".join(parts)


def _answers(body: bytes, request_id: RequestId) -> bool:
    """Return whether `body` is the response to the request with the id `request_id`."""
    message = decode(body, None)  # the params and the result stay encoded
    return not isinstance(message.method, str) and str(message.id) == str(request_id)


async def _finish(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(FINISH_SECONDS):
            async for _ in _chunks(response):
                pass
    except (TimeoutError, SessionError):
        response.close()


_is_loaded = False


async def _load_library() -> None:
    global _is_loaded
    if not _is_loaded:
        await begin_in_thread(_import_library, name="import-http-client")
        _is_loaded = True


def _import_library() -> None:
    import aiohttp  # noqa: F401 - loading it is the purpose
