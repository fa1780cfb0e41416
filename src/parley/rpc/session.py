"""A session with an untrusted MCP server: requests and their results, and the negotiated protocol version.

The session first sends `initialize`, which servers of the 2025 versions accept. If the server responds with an
error, the session sends `server/discover` to find out whether the server supports version 2026-07-28. In that
version, each request contains the data about the client that `initialize` contains in earlier versions. A carrier
transports the messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeGuard

from msgspec import UNSET, Struct

from parley.rpc.errors import (
    RequestRefused,
    SessionError,
    SessionLost,
    TooLarge,
    UnreadableAnswer,
    UnsupportedVersion,
)
from parley.rpc.incoming import decode, decode_object
from parley.rpc.modern import CLIENT_INFO, NO_INITIALIZE, HeaderNames, modern_headers, modern_meta
from parley.wire.framing import PREFIX_BYTES, SUFFIX_BYTES, Overlong
from parley.wire.jsonrpc import (
    METHOD_NOT_FOUND,
    Message,
    RequestId,
    encode,
    error_of,
    error_response,
    notification,
    read_outline,
    request,
    response,
)
from parley.wire.mcp import (
    FULL_VERSION,
    KNOWN_VERSIONS,
    Cancelled,
    Initialized,
    InitializeParams,
    Ping,
    Progress,
)
from parley.wire.modern import MODERN_VERSION, DiscoverResult
from parley.wire.subscriptions import ListenParams

__all__ = ["Carrier", "OnProgress", "Outgoing", "Session"]

log: Final = logging.getLogger(__name__)

NO_HEADERS: Final[HeaderNames] = {}

MAX_INITIALIZE_BYTES: Final = 1024 * 1024
"""The maximum size, in bytes, of a server's first response."""

MAX_WAITING: Final = 1000
"""The number of unsent messages at which the session stops responding to requests from the server. Messages remain
unsent if the server does not read.
"""

OnProgress = Callable[[float, float | None, str | None], None]
"""A function that is called with the progress of a request, the total amount of work, and a message from the
server. The total and the message may be None.
"""


class ToolListChanged(Struct, frozen=True):
    """The params of the notification that the tools of a server have changed."""

    METHOD: ClassVar[str] = "notifications/tools/list_changed"


class Outgoing(NamedTuple):
    """A message that a session sends to the server."""

    frame: bytes
    id: RequestId | None = None
    """The id of the request; None if the message is not a request."""
    headers: Mapping[str, str] = {}
    """HTTP headers that are sent with the message. A transport that does not use HTTP ignores these headers."""


class Carrier(Protocol):
    """The transport of a session's messages. The carrier calls `Session.receive` with each message from the server,
    `Session.fail` if a request gets no response, and `Session.end` when the connection ends.
    """

    @property
    def waiting(self) -> int:
        """The number of messages that have not been sent yet."""
        ...

    def send(self, message: Outgoing) -> None:
        """Queue a message for sending, without waiting."""
        ...

    def cancel(self, request_id: RequestId, notice: bytes | None) -> None:
        """Stop waiting for the response to the given request. `notice` is the notification that informs the server
        of the cancellation; None if the server is not informed.
        """
        ...

    def set_version(self, version: str, *, is_modern: bool) -> None: ...

    def listen(self) -> None:
        """Open a separate stream for the server's messages that belong to no request, if the transport needs such a
        stream.
        """
        ...


class _Pending(NamedTuple):
    result: asyncio.Future[Message]
    on_progress: OnProgress | None


class Session:
    """A session with one MCP server: sends requests to the server, and receives its responses, notifications and
    requests.
    """

    def __init__(self, *, max_bytes: int, on_tools_changed: Callable[[], None] = lambda: None) -> None:
        """Create a session. A message that is larger than `max_bytes` is not decoded. `on_tools_changed` is called
        when the server reports that its tools have changed.
        """
        self.carrier: Carrier
        """The transport of the messages. It must be set before the first request."""
        self._max_bytes, self._on_tools_changed = max_bytes, on_tools_changed
        self._limit = min(max_bytes, MAX_INITIALIZE_BYTES)
        self._pending: dict[RequestId, _Pending] = {}
        self._last_id = 0
        self._ended: SessionError | None = None
        self._is_modern = False
        self._listening: asyncio.Task[None] | None = None

    @property
    def limit(self) -> int:
        """The maximum size of the next message from the server, in bytes.

        The limit is lower for the first response.
        """
        return self._limit

    # --- to the server -------------------------------------------------------------------

    async def open(self) -> None:
        """Connect to the server, and negotiate a protocol version.

        Raises:
            UnsupportedVersion: the server chose a version that this client does not support.
            SessionError: the server could not be reached, or its response is an error or is invalid.
        """
        params = {"protocolVersion": FULL_VERSION, "capabilities": {}, "clientInfo": CLIENT_INFO}
        try:
            result = await self.request(InitializeParams.METHOD, params)
        except RequestRefused as refused:
            if refused.code not in NO_INITIALIZE or not await self._discover():
                raise
            return
        match result:
            case {"protocolVersion": str(version), "capabilities": dict(), "serverInfo": dict()}:
                if version not in KNOWN_VERSIONS:
                    raise UnsupportedVersion(version)
            case _:
                raise UnreadableAnswer
        self.carrier.set_version(version, is_modern=False)
        self.carrier.send(Outgoing(notification(Initialized.METHOD, b"{}")))
        self.carrier.listen()

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_progress: OnProgress | None = None,
        header_names: HeaderNames = NO_HEADERS,
    ) -> dict[str, Any]:
        """Send a request and return its result. If the calling task is cancelled, the server is informed.

        `on_progress` is called for each progress notification from the server. `header_names` contains the
        arguments of a tool that are also sent in headers (`rpc/modern.py`); only MCP 2026-07-28 has these headers.

        Raises:
            SessionError: the server responded with an error or with an invalid result, or there is no response.
        """
        if self._ended is not None:
            raise self._ended
        self._last_id += 1
        request_id = self._last_id
        meta: dict[str, Any] = modern_meta() if self._is_modern else {}
        if on_progress is not None:
            meta["progressToken"] = request_id
        whole = {**(params or {}), "_meta": meta} if meta else params or {}
        headers = modern_headers(method, whole, header_names) if self._is_modern else {}
        pending = _Pending(asyncio.get_running_loop().create_future(), on_progress)
        self._pending[request_id] = pending
        try:
            self.carrier.send(Outgoing(request(request_id, method, encode(whole)), request_id, headers))
            answer = await pending.result
        except asyncio.CancelledError:
            if self._pending.pop(request_id, None) is not None and self._ended is None:
                notice = notification(Cancelled.METHOD, encode({"requestId": request_id}))
                self.carrier.cancel(request_id, None if method == InitializeParams.METHOD else notice)
            raise
        finally:
            self._pending.pop(request_id, None)
        if (error := error_of(answer)) is not None:
            raise RequestRefused(error.code, error.message)
        if answer.result is UNSET:
            raise UnreadableAnswer
        result = decode_object(answer.result)
        if self._is_modern and result.get("resultType", "complete") != "complete":
            raise UnreadableAnswer  # the server asks for input, which this client has not declared as a capability
        return result

    async def _discover(self) -> bool:
        """Return whether the server supports MCP 2026-07-28. If the server supports this version, the session
        switches to it.
        """
        self._is_modern = True
        try:
            found = await self.request(DiscoverResult.METHOD)
        except SessionError:
            found = {}
        match found:
            case {"supportedVersions": list(versions), "capabilities": dict(offered)} if MODERN_VERSION in versions:
                self.carrier.set_version(MODERN_VERSION, is_modern=True)
                if isinstance(tools := offered.get("tools"), dict) and tools.get("listChanged") is True:
                    self._listening = asyncio.create_task(self._listen())
            case _:
                self._is_modern = False
        return self._is_modern

    async def _listen(self) -> None:
        """Subscribe to notifications about changed tools. A server at MCP 2026-07-28 sends these notifications only
        to subscribers.
        """
        try:
            await self.request(ListenParams.METHOD, {"notifications": {"toolsListChanged": True}})
        except SessionError as error:
            log.info("the server sends no notifications of changed tools: %s", error)

    # --- from the server -----------------------------------------------------------------

    def receive(self, frame: bytes | Overlong, *, of_request: RequestId | None = None) -> bool:
        """Handle one message from the server. Return whether the message is a response.

        If `of_request` is given, a response belongs to the request with this id, whatever id the response contains.
        If `of_request` is None, the id in a response determines its request. A message that cannot be decoded is
        then skipped. If the skipped message contains the id of a request, that request fails.

        Raises:
            SessionError: the message cannot be decoded, and `of_request` is not None.
        """
        try:
            if isinstance(frame, Overlong):
                raise TooLarge(self._limit, "bytes")
            message = decode(frame, self._limit)
        except SessionError as error:
            if of_request is not None:
                raise
            outline = (
                frame if isinstance(frame, Overlong) else Overlong(frame[:PREFIX_BYTES], frame[-SUFFIX_BYTES:])
            )
            self._skip(outline, error)
            return False
        if isinstance(message.method, str):
            self._receive_other(message, message.method)
            return False
        request_id = message.id if of_request is None else of_request
        if isinstance(request_id, str) and request_id.isdecimal() and request_id not in self._pending:
            request_id = int(request_id[:20])
        if request_id is UNSET:
            return False
        if (pending := self._pending.pop(request_id, None)) is not None:
            self._limit = self._max_bytes
            if not pending.result.done():
                pending.result.set_result(message)
        return True

    def fail(self, request_id: RequestId, error: SessionError) -> None:
        """Raise `error` in the caller of the given request, if the request is still waiting for its response."""
        pending = self._pending.pop(request_id, None)
        if pending is not None and not pending.result.done():
            pending.result.set_exception(error)

    def end(self) -> None:
        """Raise `SessionLost` in the callers of all open requests, because the connection has ended."""
        if self._ended is None:
            self._ended = SessionLost()
            for request_id in tuple(self._pending):
                self.fail(request_id, SessionLost())
            if self._listening is not None:
                self._listening.cancel()

    @property
    def has_ended(self) -> bool:
        return self._ended is not None

    def _skip(self, outline: Overlong, error: SessionError) -> None:
        beginning = outline.prefix
        if beginning.isspace() or not beginning:
            return
        log.info("skipped a message of a server that cannot be decoded: at least %d bytes", len(beginning))
        request_id = read_outline(beginning, outline.suffix).id
        if request_id is not None:
            self.fail(request_id, error)

    def _receive_other(self, message: Message, method: str) -> None:
        """Handle a notification or a request from the server. The response to an unknown request is an error. An
        unknown notification is ignored.
        """
        if message.id is not UNSET:
            if self.carrier.waiting < MAX_WAITING and self._ended is None:
                refused = error_response(message.id, METHOD_NOT_FOUND, "Method not found")
                self.carrier.send(Outgoing(response(message.id, b"{}") if method == Ping.METHOD else refused))
        elif method == ToolListChanged.METHOD:
            self._on_tools_changed()
        elif method == Progress.METHOD and message.params is not UNSET:
            try:
                self._report(decode_object(message.params))
            except UnreadableAnswer:
                pass

    def _report(self, params: dict[str, Any]) -> None:
        token, progress, total, text = (
            params.get(key) for key in ("progressToken", "progress", "total", "message")
        )
        if not isinstance(token, int | str) or (pending := self._pending.get(token)) is None:
            return
        if pending.on_progress is not None and _is_number(progress):
            pending.on_progress(
                progress, total if _is_number(total) else None, text if isinstance(text, str) else None
            )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
