"""The endpoint `/mcp` of Streamable HTTP.

The module `stateless.py` handles the requests at version 2026-07-28, and the module `page_endpoint.py` handles the
requests for the web page.

A POST carries messages from the client, a GET opens the stream of messages that belong to no request, and a DELETE
ends the session. For every request except health checks, the endpoint checks in this order: host and origin, token
or sign-in, rate, path, method, protocol version, session.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from msgspec import Struct

from parley.errors import BodyTooLarge, BodyUnreadable
from parley.ports.http import HttpRequest, MessageStream
from parley.server.context import Principal, Reply
from parley.server.errors import RequestRefused, UnsupportedVersion
from parley.server.http.authentication import UNAUTHORIZED, Authenticator, RateLimit
from parley.server.http.errors import (
    ArrayNotAllowed,
    BadBody,
    NotAcceptable,
    RequestBodyTooLarge,
    RequestBodyUnreadable,
    SessionMissing,
    UnknownEventId,
    UnknownSession,
    UnsupportedMediaType,
    VersionMismatch,
)
from parley.server.http.event_ids import SessionCursors
from parley.server.http.guard import Guard
from parley.server.http.health import Health
from parley.server.http.messages import JSON, TOO_MANY, UNAVAILABLE, PostedMessage, read_messages, refusal
from parley.server.http.metrics_endpoint import METRICS_PATH, MetricsEndpoint
from parley.server.http.node_endpoint import NodeEndpoint
from parley.server.http.page_endpoint import PageEndpoint
from parley.server.http.replies import JsonReply, first_of
from parley.server.http.session import HttpSession
from parley.server.http.sessions import HttpSessions
from parley.server.http.stateless import StatelessRequests
from parley.wire.http import LAST_EVENT_ID, METHOD, NAME, PROTOCOL_VERSION, SESSION_ID, HttpAnswer
from parley.wire.mcp import KNOWN_VERSIONS, Cancelled
from parley.wire.modern import MODERN_VERSION, SERVED_VERSIONS
from parley.wire.nodes import NODE_PATH

__all__ = ["PATH", "HttpEndpoint", "HttpLimits"]

log = logging.getLogger(__name__)

PATH: Final = "/mcp"
BATCH_VERSION: Final = "2025-03-26"
"""The only protocol version that allows arrays of JSON-RPC messages."""
METHODS: Final = "GET, POST, DELETE"

_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
"""The syntax of a protocol version. An error response quotes the version that the client has sent only if this
version has this syntax.
"""
_FOR_PAGES: Final = {
    "Access-Control-Expose-Headers": f"{SESSION_ID}, WWW-Authenticate, Retry-After",
    "Vary": "Origin",
}
"""The headers that are added to a response to a web page whose origin is accepted."""
_PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": METHODS,
    "Access-Control-Allow-Headers": ", ".join(
        ("Authorization", "Content-Type", "Accept", SESSION_ID, PROTOCOL_VERSION, LAST_EVENT_ID, METHOD, NAME)
    ),
    "Access-Control-Max-Age": "600",
}
"""The headers of the response to a CORS preflight request from an accepted origin."""
_JSON_TYPES: Final = frozenset({"application/json", "application/*", "*/*"})
_STREAM_TYPES: Final = frozenset({"text/event-stream", "text/*", "*/*"})


class HttpLimits(Struct, frozen=True, kw_only=True):
    max_body_bytes: int
    """The maximum size of the body of a POST, in bytes."""


_WRONG_HOST: Final = HttpAnswer(
    status=HTTPStatus.FORBIDDEN,
    body=b"the header Host does not name this server; for a forwarded port, set serve.public_url\n",
    headers={"Content-Type": "text/plain"},
)


class HttpEndpoint:
    """Handles the HTTP requests to `/mcp`, and passes requests to other paths to the endpoints for these paths."""

    def __init__(
        self,
        sessions: HttpSessions,
        stateless: StatelessRequests,
        *,
        is_modern: Callable[[], bool],
        guard: Guard,
        health: Health,
        authenticator: Authenticator,
        rate: RateLimit,
        limits: HttpLimits,
        why_too_large: Callable[[int], str | None],
        nodes: NodeEndpoint | None,
        page: PageEndpoint | None,
        metrics: MetricsEndpoint | None,
    ) -> None:
        """Create the endpoint.

        `metrics` handles requests for the metrics; None if the server provides no metrics. `nodes` handles requests
        from other nodes; None if this server is not a node. `page` handles requests for the web page; None if the
        server provides no web page.

        `is_modern` returns whether requests at protocol version 2026-07-28 are supported. `why_too_large` is called
        with a number of bytes. It returns the reason why there is not enough memory for these bytes, or None if
        there is enough memory.
        """
        self._sessions, self._stateless, self._is_modern = sessions, stateless, is_modern
        self._authenticator, self._why_too_large = authenticator, why_too_large
        self._guard, self._rate, self._limits, self._nodes, self._page = guard, rate, limits, nodes, page
        self._health, self._metrics = health, metrics
        self._refuses_new_clients = False
        self._arriving_bytes = 0
        """The total number of bytes of the request bodies that are being read."""

    def apply(self, *, guard: Guard, rate: RateLimit, limits: HttpLimits) -> None:
        """Use the given guard, rate limit and other limits for all later requests."""
        self._guard, self._rate, self._limits = guard, rate, limits

    @property
    def refuses_new_clients(self) -> bool:
        return self._refuses_new_clients

    def refuse_new_clients(self) -> None:
        """From now on, refuse every request that does not belong to a session of this process. Other nodes can
        still connect.
        """
        self._refuses_new_clients = True

    async def answer(self, request: HttpRequest) -> object:
        """Handle the request, and return the response: an `HttpAnswer`, a `MessageStream`, or an opened
        WebSocket.
        """
        if (state := self._health.answer(request)) is not None:
            return state
        path = self._guard.path_of(request)
        file = None if self._page is None else self._file(path, request, self._page)
        if (status := self._guard.refusal(request, is_page=file is not None)) is not None:
            return HttpAnswer(status=status) if self._guard.accepts_host(request) else _WRONG_HOST
        if file is not None:
            request.keep_alive_if_no_body()
            return file
        if (page := self._guard.page_of(request)) is not None:
            request.add_headers({"Access-Control-Allow-Origin": page, **_FOR_PAGES})
            if request.method == "OPTIONS":
                return HttpAnswer(status=HTTPStatus.NO_CONTENT, headers=_PREFLIGHT)
        if self._nodes is not None and request.target == NODE_PATH:
            return await self._nodes.answer(request)
        if self._page is not None and self._page.serves(path):
            return await self._page.answer(path, request, self._guard, self._rate)
        principal = await self._sender(request)
        if principal is None:
            if delay := self._authenticator.failed():
                await asyncio.sleep(delay)
            return UNAUTHORIZED
        if not request.mark_authenticated(principal.limited_as):
            return UNAVAILABLE
        if not self._rate.admits(principal):
            return TOO_MANY
        if path == METRICS_PATH and self._metrics is not None:
            request.keep_alive_if_no_body()
            return self._metrics.answer(request, principal)
        if path != PATH or "?" in request.target:
            return HttpAnswer(status=HTTPStatus.NOT_FOUND)
        if self._refuses_new_clients and not any(one in self._sessions for one in request.header(SESSION_ID)):
            return UNAVAILABLE
        try:
            match request.method:
                case "POST":
                    return await self._post(request, principal)
                case "GET" | "DELETE" if self._names_modern_version(request):
                    return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "POST"})
                case "GET":
                    return await self._get(request, principal)
                case "DELETE":
                    await self._sessions.remove(await self._session(request, principal))
                    return HttpAnswer(status=HTTPStatus.NO_CONTENT)
                case _:
                    return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": METHODS})
        except RequestRefused as refused:
            return refusal(refused)

    def _file(self, path: str, request: HttpRequest, page: PageEndpoint) -> HttpAnswer | None:
        """Return the response if the request is for a file of the web page; otherwise, return None. `path` is the
        path of the request.
        """
        if page.files.build and (folder := self._guard.folder_of(request)) is not None:
            return HttpAnswer(status=HTTPStatus.PERMANENT_REDIRECT, headers={"Location": f"{folder}/"})
        return page.files.answer(path, request)

    async def _sender(self, request: HttpRequest) -> Principal | None:
        """Return the principal that sent the request; None if the request has neither a valid token nor a valid
        sign-in.
        """
        if request.header("Authorization") or self._page is None:
            return self._authenticator.principal(request) or await self._authenticator.look_up(request)
        return await self._page.principal(request, self._guard)

    def _names_modern_version(self, request: HttpRequest) -> bool:
        """Return whether the header `MCP-Protocol-Version` of the request is 2026-07-28, and the server supports
        this version. This version has neither sessions nor arrays of messages.
        """
        return self._is_modern() and request.header(PROTOCOL_VERSION) == [MODERN_VERSION]

    # --- POST --------------------------------------------------------------------------

    async def _post(self, request: HttpRequest, principal: Principal) -> HttpAnswer | MessageStream:
        if _media_types(request.header("Content-Type")) != ["application/json"] or request.header(
            "Content-Encoding"
        ):
            raise UnsupportedMediaType
        accepts_json, accepts_stream = _accepts(request, _JSON_TYPES), _accepts(request, _STREAM_TYPES)
        if not accepts_json:
            raise NotAcceptable("application/json")
        messages, is_array = await self._messages(request)
        # The first message was counted with the request.
        if len(messages) > 1 and not self._rate.admits(principal, len(messages) - 1):
            return TOO_MANY
        request_id = None if is_array else messages[0].id
        try:
            return await self._take(request, principal, messages, is_array=is_array, accepts_stream=accepts_stream)
        except RequestRefused as refused:
            return refusal(refused, request_id)

    async def _take(
        self,
        request: HttpRequest,
        principal: Principal,
        messages: list[PostedMessage],
        *,
        is_array: bool,
        accepts_stream: bool,
    ) -> HttpAnswer | MessageStream:
        """Handle the messages of a POST, and return the HTTP response.

        `is_array` is True if the body is an array. `accepts_stream` is True if the client accepts a stream of
        messages. The messages are removed from the list `messages`, so that the memory of large messages can be
        freed while their requests are in progress.
        """
        if not is_array and self._stateless.is_for(request, messages[0]) and self._is_modern():
            return await self._stateless.answer(request, messages.pop(), principal, accepts_stream=accepts_stream)
        if is_array and self._names_modern_version(request):
            raise ArrayNotAllowed(BATCH_VERSION)
        if messages[0].is_initialize and not request.header(SESSION_ID):
            return await self._initialize(messages.pop(), principal)
        session = await self._session(request, principal)
        if is_array and session.client.session.version != BATCH_VERSION:
            raise ArrayNotAllowed(BATCH_VERSION)
        requests = sum(message.id is not None for message in messages)
        if accepts_stream and any(message.is_streamed for message in messages):
            stream = request.open_stream()
            streamed = session.stream_reply(stream, [one.id for one in messages if one.id is not None])
            _pass_on(messages, session, streamed)
            return stream
        reply = JsonReply(requests, session.outbox)
        may_end_stream = any(message.method == Cancelled.METHOD for message in messages)
        _pass_on(messages, session, reply)
        if not requests:
            if may_end_stream:
                await asyncio.sleep(0)  # the dispatcher handles a notification in the next tick
                await self._sessions.save_ended_streams(session)
            return HttpAnswer(status=HTTPStatus.ACCEPTED)
        return await self._json_answer(session, reply, is_array=is_array)

    async def _json_answer(self, session: HttpSession, reply: JsonReply, *, is_array: bool) -> HttpAnswer:
        """Wait for the responses to the requests of a POST, and return them as JSON.

        If the session ends, continue to wait until its requests get no further responses. If only some of the
        requests have responses by then, return these responses.

        Raises:
            UnknownSession: the session has ended, and none of the requests has a response.
        """
        with session.in_use():
            await first_of(reply.done(), session.wait_all_answered())
            await session.saved()
        if session.is_cut_off:
            return UNAUTHORIZED
        if reply.answers:
            body = b"[%b]" % b",".join(reply.answers) if is_array else reply.answers[0]
            return HttpAnswer(status=HTTPStatus.OK, body=body, headers=JSON)
        if reply.is_done:  # the client has cancelled the requests
            return HttpAnswer(status=HTTPStatus.ACCEPTED)
        if self._sessions.is_shutting_down:
            return UNAVAILABLE
        raise UnknownSession

    async def _messages(self, request: HttpRequest) -> tuple[list[PostedMessage], bool]:
        own_bytes = 0

        def why_too_large(size: int) -> str | None:
            nonlocal own_bytes
            others = self._arriving_bytes - own_bytes
            if (why := self._why_too_large(others + size)) is None:
                self._arriving_bytes, own_bytes = others + size, size
            return why

        try:
            return read_messages(await request.body(self._limits.max_body_bytes, why_too_large))
        except BodyTooLarge as error:
            raise RequestBodyTooLarge(str(error)) from None
        except BodyUnreadable as error:
            raise RequestBodyUnreadable(str(error)) from None
        finally:
            self._arriving_bytes -= own_bytes

    async def _initialize(self, message: PostedMessage, principal: Principal) -> HttpAnswer:
        if message.id is None:
            raise BadBody("`initialize` is a request")
        session = await self._sessions.create(principal)
        reply = JsonReply(1, session.outbox)
        session.client.take(message.frame, reply)
        answer = await self._json_answer(session, reply, is_array=False)
        if not session.client.session.initialized:
            self._sessions.delete(session)
            return answer
        return HttpAnswer(
            status=answer.status, body=answer.body, headers={**answer.headers, SESSION_ID: session.id}
        )

    # --- GET ---------------------------------------------------------------------------

    async def _get(self, request: HttpRequest, principal: Principal) -> MessageStream:
        if not _accepts(request, _STREAM_TYPES):
            raise NotAcceptable("text/event-stream")
        session = await self._session(request, principal)
        cursors = _cursors(request, session)
        stream = request.open_stream()
        if cursors is not None and cursors.call is not None:
            await session.resume_call(cursors.call, stream)
        else:
            session.attach(stream, None if cursors is None else cursors.streams)
        return stream

    # --- sessions ----------------------------------------------------------------------

    async def _session(self, request: HttpRequest, principal: Principal) -> HttpSession:
        """Return the session that the request names.

        Raises:
            HttpRefused: the request names no session, the session does not exist, or the request names a protocol
                version that differs from the version of the session.
            UnsupportedVersion: the server does not support the protocol version that the request names.
        """
        ids, versions = request.header(SESSION_ID), request.header(PROTOCOL_VERSION)
        if len(versions) > 1 or any(version not in KNOWN_VERSIONS for version in versions):
            is_version = len(versions) == 1 and _VERSION.fullmatch(versions[0])
            raise UnsupportedVersion(
                versions[0] if is_version else "unknown",
                supported=SERVED_VERSIONS if self._is_modern() else KNOWN_VERSIONS,
            )
        if len(ids) != 1:
            raise SessionMissing
        session = await self._sessions.find(ids[0], principal)
        if session is None:
            raise UnknownSession
        if versions and versions[0] != session.client.session.version:
            raise VersionMismatch
        return session


def _pass_on(messages: list[PostedMessage], session: HttpSession, reply: Reply) -> None:
    """Pass the messages, in their order, to the client connection of the session. The responses are sent to
    `reply`. Each message is removed from the list `messages`, so that the memory of large messages can be freed.
    """
    messages.reverse()
    while messages:
        session.client.take(messages.pop().frame, reply)


def _cursors(request: HttpRequest, session: HttpSession) -> SessionCursors | None:
    """Return the cursors in the header `Last-Event-ID` of the request; None if the header is missing.

    Raises:
        UnknownEventId: the server did not send this event id in the session.
    """
    ids = [value for value in request.header(LAST_EVENT_ID) if value]
    if not ids:
        return None
    cursors = session.ids.decode(session.id, ids[0]) if len(ids) == 1 else None
    if cursors is None:
        raise UnknownEventId
    return cursors


def _accepts(request: HttpRequest, types: frozenset[str]) -> bool:
    """Return whether the header `Accept` contains one of the media types `types`; True if this header is
    missing.
    """
    accepted = _media_types(request.header("Accept"))
    return not accepted or not types.isdisjoint(accepted)


def _media_types(values: list[str]) -> list[str]:
    parts = (part.partition(";")[0].strip().lower() for value in values for part in value.split(","))
    return [part for part in parts if part]
