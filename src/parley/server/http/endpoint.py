"""The endpoint `/mcp` of Streamable HTTP, for the versions 2025-03-26, 2025-06-18 and 2025-11-25.

A POST carries messages of the client, a GET opens the stream of messages that belong to no request, and a DELETE
ends the session. The checks of a request are always in the same order: host and origin, token, rate, path, method,
session, version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Final

from msgspec import UNSET, Struct

from parley.errors import BodyTooLarge, BodyUnreadable
from parley.ports.http import HttpRequest, MessageStream
from parley.server.context import Principal
from parley.server.http.authentication import Authenticator, RateLimit
from parley.server.http.event_ids import SessionCursors
from parley.server.http.guard import Guard
from parley.server.http.messages import BadBody, PostedMessage, error_body, read_messages
from parley.server.http.replies import JsonReply
from parley.server.http.sessions import HttpSession, HttpSessions, TooManySessions
from parley.wire.http import LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID, HttpAnswer
from parley.wire.jsonrpc import INVALID_REQUEST, RequestId
from parley.wire.mcp import KNOWN_VERSIONS

__all__ = ["PATH", "HttpEndpoint", "HttpLimits"]

log = logging.getLogger(__name__)

PATH: Final = "/mcp"
BATCH_VERSION: Final = "2025-03-26"
"""The only version with JSON-RPC arrays."""
UNSUPPORTED_VERSION: Final = -32022
"""The error code for a protocol version that the server does not know, from later versions of the protocol."""
METHODS: Final = "GET, POST, DELETE"

_JSON: Final = {"Content-Type": "application/json"}
_TOO_MANY: Final = HttpAnswer(status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "1"})
_JSON_TYPES: Final = frozenset({"application/json", "application/*", "*/*"})
_STREAM_TYPES: Final = frozenset({"text/event-stream", "text/*", "*/*"})


class HttpLimits(Struct, frozen=True, kw_only=True):
    max_body_bytes: int = 64 * 1024 * 1024


class _Refused(Exception):
    """The answer to a request that is refused."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        number: int = INVALID_REQUEST,
        request_id: RequestId | None = None,
        data: object = UNSET,
    ) -> None:
        super().__init__(message)
        body = error_body(number, message, request_id=request_id, data=data)
        self.answer = HttpAnswer(status=status, body=body, headers=_JSON)


class HttpEndpoint:
    """Answers HTTP requests."""

    def __init__(
        self,
        sessions: HttpSessions,
        *,
        guard: Guard,
        authenticator: Authenticator,
        rate: RateLimit,
        limits: HttpLimits,
        why_too_large: Callable[[int], str | None] = lambda size: None,
    ) -> None:
        """Create the endpoint. `why_too_large` is called with a number of bytes and returns why there is no
        memory for them, or None.
        """
        self._sessions, self._guard = sessions, guard
        self._authenticator, self._rate = authenticator, rate
        self._limits, self._why_too_large = limits, why_too_large

    async def answer(self, request: HttpRequest) -> HttpAnswer | MessageStream:
        """Return the answer to one request."""
        if (status := self._guard.refusal(request)) is not None:
            return HttpAnswer(status=status)
        principal = self._authenticator.principal(request)
        if principal is None:
            if delay := self._authenticator.failed():
                await asyncio.sleep(delay)
            return HttpAnswer(status=HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})
        request.authenticated()
        if not self._rate.admits(principal):
            return _TOO_MANY
        if request.target != PATH:
            return HttpAnswer(status=HTTPStatus.NOT_FOUND)
        try:
            match request.method:
                case "POST":
                    return await self._post(request, principal)
                case "GET":
                    return await self._get(request, principal)
                case "DELETE":
                    self._sessions.delete(self._session(request, principal))
                    return HttpAnswer(status=HTTPStatus.NO_CONTENT)
                case _:
                    return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": METHODS})
        except _Refused as refused:
            return refused.answer

    # --- POST --------------------------------------------------------------------------

    async def _post(self, request: HttpRequest, principal: Principal) -> HttpAnswer | MessageStream:
        if _media_types(request.header("Content-Type")) != ["application/json"] or request.header(
            "Content-Encoding"
        ):
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be plain application/json")
        accepts_json, accepts_stream = _accepts(request, _JSON_TYPES), _accepts(request, _STREAM_TYPES)
        if not accepts_json:
            raise _Refused(HTTPStatus.NOT_ACCEPTABLE, "the client must accept application/json")
        messages, is_array = await self._messages(request)
        if len(messages) > 1 and not self._rate.admits(principal, len(messages) - 1):  # the first one was counted
            return _TOO_MANY
        if messages[0].is_initialize and not request.header(SESSION_ID):
            return await self._initialize(messages[0], principal)
        session = self._session(request, principal, messages[0])
        if is_array and session.client.session.version != BATCH_VERSION:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"arrays of messages are for clients at {BATCH_VERSION} only")
        requests = sum(message.id is not None for message in messages)
        if accepts_stream and any(message.is_streamed for message in messages):
            stream = request.open_stream()
            streamed = session.stream_reply(stream, [one.id for one in messages if one.id is not None])
            for message in messages:
                session.client.take(message.frame, streamed)
            return stream
        reply = JsonReply(requests, session.outbox)
        for message in messages:
            session.client.take(message.frame, reply)
        if not requests:
            return HttpAnswer(status=HTTPStatus.ACCEPTED)
        with session.in_use():
            await _first_of(reply.done(), session.wait_ended())
        return _json_answer(reply.answers, is_array=is_array)

    async def _messages(self, request: HttpRequest) -> tuple[list[PostedMessage], bool]:
        try:
            return read_messages(await request.body(self._limits.max_body_bytes, self._why_too_large))
        except BodyTooLarge as error:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from None
        except BodyUnreadable as error:
            raise _Refused(HTTPStatus.REQUEST_TIMEOUT, str(error)) from None
        except BadBody as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error), number=error.number) from None

    async def _initialize(self, message: PostedMessage, principal: Principal) -> HttpAnswer:
        if message.id is None:
            raise _Refused(HTTPStatus.BAD_REQUEST, "`initialize` is a request")
        try:
            session = await self._sessions.create(principal)
        except TooManySessions:
            return HttpAnswer(status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "30"})
        reply = JsonReply(1, session.outbox)
        with session.in_use():
            session.client.take(message.frame, reply)
            await _first_of(reply.done(), session.wait_ended())
        answer = _json_answer(reply.answers, is_array=False)
        if not session.client.session.initialized:
            self._sessions.delete(session)
            return answer
        return HttpAnswer(
            status=answer.status, body=answer.body, headers={**answer.headers, SESSION_ID: session.id}
        )

    # --- GET ---------------------------------------------------------------------------

    async def _get(self, request: HttpRequest, principal: Principal) -> MessageStream:
        if not _accepts(request, _STREAM_TYPES):
            raise _Refused(HTTPStatus.NOT_ACCEPTABLE, "the client must accept text/event-stream")
        session = self._session(request, principal)
        cursors = _cursors(request, session)
        stream = request.open_stream()
        if cursors is not None and cursors.call is not None:
            await session.resume_call(cursors.call, stream)
        else:
            session.attach(stream, None if cursors is None else cursors.streams)
        return stream

    # --- sessions ----------------------------------------------------------------------

    def _session(
        self, request: HttpRequest, principal: Principal, message: PostedMessage | None = None
    ) -> HttpSession:
        """Return the session of a request. The version of the request must be the version of the session."""
        ids, versions = request.header(SESSION_ID), request.header(PROTOCOL_VERSION)
        if len(versions) > 1 or any(version not in KNOWN_VERSIONS for version in versions):
            raise _Refused(
                HTTPStatus.BAD_REQUEST,
                "Unsupported protocol version",
                number=UNSUPPORTED_VERSION,
                request_id=None if message is None else message.id,
                data={"supported": KNOWN_VERSIONS},
            )
        if len(ids) != 1:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"the header {SESSION_ID} is missing; begin with `initialize`")
        session = self._sessions.find(ids[0], principal)
        if session is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "the session does not exist; begin with `initialize`")
        if versions and versions[0] != session.client.session.version:
            different = f"{PROTOCOL_VERSION} is not the version that the session negotiated"
            raise _Refused(HTTPStatus.BAD_REQUEST, different)
        return session


def _cursors(request: HttpRequest, session: HttpSession) -> SessionCursors | None:
    """Return the cursors in the client's `Last-Event-ID`, or None."""
    ids = [value for value in request.header(LAST_EVENT_ID) if value]
    if not ids:
        return None
    cursors = session.ids.open(session.id, ids[0]) if len(ids) == 1 else None
    if cursors is None:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{LAST_EVENT_ID} is not an id of this session")
    return cursors


def _json_answer(answers: list[bytes], *, is_array: bool) -> HttpAnswer:
    if not answers:  # the client has cancelled the requests, or the session has ended
        return HttpAnswer(status=HTTPStatus.ACCEPTED)
    body = b"[%b]" % b",".join(answers) if is_array else answers[0]
    return HttpAnswer(status=HTTPStatus.OK, body=body, headers=_JSON)


def _accepts(request: HttpRequest, types: frozenset[str]) -> bool:
    """Return whether the client accepts one of these media types; True without an `Accept` header."""
    accepted = _media_types(request.header("Accept"))
    return not accepted or not types.isdisjoint(accepted)


def _media_types(values: list[str]) -> list[str]:
    parts = (part.partition(";")[0].strip().lower() for value in values for part in value.split(","))
    return [part for part in parts if part]


async def _first_of(*waits: Coroutine[None, None, None]) -> None:
    """Wait until the first of several awaitables ends, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
