"""Handles HTTP requests at protocol version 2026-07-28. Each POST is independent of earlier requests: it belongs to
no session, and the server stores no state for it.

`ServerCore` treats each POST as a client that sends one request and disconnects after the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from parley.ports.http import HttpRequest, MessageStream
from parley.ports.outbox import FrameOutbox, OpenFrame, Outbox
from parley.server.context import Principal, Reply
from parley.server.errors import RequestRefused
from parley.server.http.authentication import UNAUTHORIZED
from parley.server.http.errors import HeaderMismatch, NotAcceptable
from parley.server.http.messages import JSON, UNAVAILABLE, PostedMessage, refusal
from parley.server.http.repeated_headers import wrong_header
from parley.server.http.replies import JsonReply, first_of
from parley.server.modern.requests import checked_meta
from parley.server.serve import ClientConnection, ServerCore
from parley.server.session import SILENT
from parley.wire.framing import Overlong
from parley.wire.http import PROTOCOL_VERSION, HttpAnswer
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, RequestId, decode_lenient
from parley.wire.mcp import CallToolParams
from parley.wire.modern import MISSING_CAPABILITY, MODERN_VERSION, UNSUPPORTED_VERSION
from parley.wire.subscriptions import ListenParams

__all__ = ["StatelessRequests"]

log = logging.getLogger(__name__)

CONVERSATION_STREAM: Final = "conversationStream"
"""The tool whose calls get a stream of messages as the response at protocol version 2026-07-28. In a session, a
call of this tool returns immediately, and the events of the conversation are sent on the GET stream of the session.
"""
STREAMED_METHODS: Final = frozenset({ListenParams.METHOD})
_STATUSES: Final = {
    METHOD_NOT_FOUND: HTTPStatus.NOT_FOUND,
    INVALID_PARAMS: HTTPStatus.BAD_REQUEST,
    MISSING_CAPABILITY: HTTPStatus.BAD_REQUEST,
    UNSUPPORTED_VERSION: HTTPStatus.BAD_REQUEST,
}
"""The HTTP status of the response that contains a JSON-RPC error, by the numeric code of the error. For other
codes, the status is 200.
"""


class _Error(Struct):
    code: int = 0


class _Answer(Struct):
    error: _Error | UnsetType = UNSET


_answer_decoder: Final = msgspec.json.Decoder(_Answer)


class StatelessRequests:
    """Handles POST requests at protocol version 2026-07-28."""

    def __init__(
        self,
        core: ServerCore,
        *,
        on_ended: Callable[[], None],
        is_valid: Callable[[Principal], bool],
    ) -> None:
        """Create an object without requests in progress.

        `on_ended` is called when a request has ended. `is_valid` returns whether the token of a principal is valid.
        The token is checked again after the body of a request has arrived, because the body may take long to
        arrive.
        """
        self._core, self._on_ended, self._is_valid = core, on_ended, is_valid
        self._posts: dict[asyncio.Task[None], _Post] = {}
        """The requests in progress, by the tasks that serve them."""

    def __len__(self) -> int:
        """Return the number of requests in progress."""
        return len(self._posts)

    @staticmethod
    def is_for(request: HttpRequest, message: PostedMessage) -> bool:
        """Return whether the message must be handled at protocol version 2026-07-28: the `_meta` of the message
        names any version, or the header `MCP-Protocol-Version` names version 2026-07-28 and the message is not
        `initialize`.
        """
        header = request.header(PROTOCOL_VERSION)
        return message.names_version or (header == [MODERN_VERSION] and not message.is_initialize)

    async def answer(
        self, request: HttpRequest, message: PostedMessage, principal: Principal, *, accepts_stream: bool
    ) -> HttpAnswer | MessageStream:
        """Execute the request in `message`, and return the HTTP response. A notification is ignored and gets an
        empty response.

        `accepts_stream` is True if the client accepts a stream of messages as the response.
        """
        if message.id is None:
            return HttpAnswer(status=HTTPStatus.ACCEPTED)
        if (refused := _refusal(request, message, message.id)) is not None:
            return refused
        if not self._is_valid(principal):
            return UNAUTHORIZED
        post = _Post(principal)
        task = asyncio.get_running_loop().create_task(self._serve(post))
        self._posts[task] = post
        task.add_done_callback(self._ended)
        try:
            await post.connected.wait()
        except asyncio.CancelledError:  # the client has disconnected
            post.end()
            raise
        if not self._is_valid(principal):
            return UNAUTHORIZED
        opens_stream = message.method == CallToolParams.METHOD and message.name == CONVERSATION_STREAM
        if message.is_streamed or opens_stream or message.method in STREAMED_METHODS:
            if not accepts_stream:
                post.end()
                return refusal(NotAcceptable("text/event-stream"), message.id)
            stream = request.open_stream()
            stream.on_closed(post.end)
            post.outbox.send_to(stream)
            post.take(message.frame, _StreamReply(stream))
            return stream
        reply = JsonReply(1, SILENT)
        try:
            post.take(message.frame, reply)
            del message  # the message may be large, and its call may take long
            await first_of(reply.done(), post.wait_ended())
        finally:
            post.end()
        if not self._is_valid(principal):
            return UNAUTHORIZED
        if not reply.answers:  # the request was ended by the server
            return UNAVAILABLE
        return HttpAnswer(status=_status(reply.answers[0]), body=reply.answers[0], headers=JSON)

    def end_all_of(self, principal: Principal) -> None:
        """End all requests of the principal immediately, because its token is no longer valid or its sign-in has
        ended. The turns of the requests continue.
        """
        for post in tuple(self._posts.values()):
            if post.principal.belongs_to(principal):
                post.cut_off()

    async def close(self) -> None:
        """Wait until all requests have ended. Call this method after `ServerCore.shutdown` has returned."""
        if self._posts:
            await asyncio.wait(self._posts)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._posts[task]
        self._on_ended()

    async def _serve(self, post: _Post) -> None:
        try:
            await self._core.serve_client(post, post.principal, connected=post.connect)
        except Exception:
            log.exception("an HTTP request failed")
            post.end()


class _PostOutbox:
    """The outbox for the messages of one request. Messages are discarded until `send_to` is called with a stream.

    After `close`, the client can still read the messages that have already been sent.
    """

    def __init__(self) -> None:
        self._out: FrameOutbox = SILENT
        self._stream: MessageStream | None = None

    def send_to(self, stream: MessageStream) -> None:
        self._out = self._stream = stream

    @property
    def writable(self) -> bool:
        return self._out.writable

    def send(self, frame: bytes) -> None:
        self._out.send(frame)

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._out.when_writable(wake)

    def begin_frame(self) -> OpenFrame:
        return self._out.begin_frame()

    async def flush(self) -> None:
        if self._stream is not None:
            await self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.end()

    def cut_off(self) -> None:
        """Close the stream, and discard all messages that the client has not read."""
        if self._stream is not None:
            self._stream.close()


class _Post:
    """One request. `ServerCore` treats the request as a connection that ends after the response."""

    def __init__(self, principal: Principal) -> None:
        self.principal: Final = principal
        self.outbox = _PostOutbox()
        self.connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._client: ClientConnection | None = None

    def connect(self, client: ClientConnection) -> None:
        self._client = client
        self.connected.set()

    def take(self, frame: bytes, reply: Reply) -> None:
        assert self._client is not None
        self._client.take(frame, reply)

    def end(self) -> None:
        self.connected.set()
        self._ended.set()

    def cut_off(self) -> None:
        """End the request immediately. No further messages are sent to its client."""
        if self._client is not None:
            self._client.remove()
        self.outbox.cut_off()
        self.end()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        """Wait until the request has ended. `take` is never called, because the only message is the body of the
        POST.
        """
        await self._ended.wait()


class _StreamReply:
    """Sends all messages that belong to one request on a stream. The stream ends after the response."""

    def __init__(self, stream: MessageStream) -> None:
        self.notifications: Outbox = stream
        self.server_requests: Outbox = SILENT
        self._stream = stream

    def events(self, request: RequestId, conversation: ConversationId, event_id: Callable[[], str]) -> Outbox:
        return self._stream

    def on_closed(self, do: Callable[[], None]) -> None:
        self._stream.on_closed(do)

    def answer(self, frame: bytes | None) -> None:
        if frame is not None:
            self._stream.send(frame)
        self._stream.end()


def _refusal(request: HttpRequest, message: PostedMessage, request_id: RequestId) -> HttpAnswer | None:
    """Return the error response if the headers of the request or the `_meta` of `message` are invalid; otherwise,
    return None.
    """
    try:
        if message.names_version and (wrong := wrong_header(request, message)) is not None:
            raise HeaderMismatch(wrong)
        checked_meta(message.params)
    except RequestRefused as refused:
        return refusal(refused, request_id)
    return None


def _status(answer: bytes) -> HTTPStatus:
    try:
        error = decode_lenient(_answer_decoder, answer).error
    except msgspec.DecodeError:  # the result is nested too deeply
        return HTTPStatus.OK
    return HTTPStatus.OK if isinstance(error, UnsetType) else _STATUSES.get(error.code, HTTPStatus.OK)
