"""The transport to a server over Streamable HTTP.

Each message is a separate HTTP request, so a call can fail without affecting other calls, and results can arrive in
any order. An interrupted stream is resumed in the same session. If the session is lost, `restart` begins a new
session.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from parley.client.errors import ClientError, RequestFailed, ServerRefused, ServerUnreachable
from parley.client.transport import OnFailed
from parley.common.secret_values import shown_url
from parley.rpc.errors import CannotReach, HttpRefused, Redirected, SessionError, SessionLost, UnreadableAnswer
from parley.rpc.session import Outgoing
from parley.rpc.streamable_http import Reopening, StreamableHttp
from parley.wire.jsonrpc import INTERNAL_ERROR, RequestId, decode_lenient, decode_message, encode, notification
from parley.wire.mcp import Cancelled, Initialized, InitializeParams

__all__ = ["RemoteServer"]

CLOSE_SECONDS: Final = 3.0
"""The maximum number of seconds to wait for the response to the request that ends the session."""

FLUSH_SECONDS: Final = 0.5
"""The maximum number of seconds for which `close` waits until the last messages have reached the server."""

IDLE_SECONDS: Final = 60.0
"""The number of seconds without any bytes after which a stream counts as broken. A server sends a comment every 15
seconds.
"""

MAX_MESSAGE_BYTES: Final = 512 * 1024 * 1024
"""The maximum size of a message from the server, in bytes. The limit is high because the snapshot of a long
conversation is a single message. Without a limit, a response that never ends would use all memory of the client.
"""

REOPENING: Final = Reopening(seconds=0.05, least_seconds=0.05, attempts=3)


class _Negotiated(Struct, rename="camel"):
    protocol_version: str = ""


_negotiated_decoder: Final = msgspec.json.Decoder(_Negotiated)
_cancelled_decoder: Final = msgspec.json.Decoder(Cancelled)


class RemoteServer:
    """A transport to a server at a URL, such as `http://127.0.0.1:8080/mcp`."""

    def __init__(self, url: str, *, token: str | None = None, env: Mapping[str, str] | None = None) -> None:
        """Create a transport. The bearer token `token` is sent only to `url`: redirects are not followed.

        `env` contains the environment variables that name proxies; the default is the environment of this process.

        Raises:
            ValueError: the token contains a character that is not printable ASCII.
        """
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("the token contains characters that are not allowed in a token")
        self.url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._env = os.environ if env is None else env
        self._http: StreamableHttp | None = None
        self._receiver: _Receiver | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def start(
        self,
        *,
        on_message: Callable[[bytes], None],
        on_end: Callable[[int | None], None],
        on_failed: OnFailed = lambda request_id, error: None,
    ) -> None:
        """Prepare a session. The connection is made when the first message is sent."""
        self._on_message, self._on_end, self._on_failed = on_message, on_end, on_failed
        await self.restart()

    async def restart(self) -> None:
        """Prepare a new session that replaces the lost session. The end of the lost session is not reported to the
        client, because the client would mistake it for the end of the new session.
        """
        if self._receiver is not None:
            self._receiver.detach()
        self._drop()
        receiver = _Receiver(self)
        http = StreamableHttp(
            self.url,
            receiver,
            headers=self._headers,
            environ=self._env,
            reopening=REOPENING,
            idle_seconds=IDLE_SECONDS,
            on_gone=receiver.end,
            on_stream_lost=lambda error: receiver.end(),
        )
        await http.start()
        self._http, self._receiver = http, receiver

    def send(self, data: bytes) -> None:
        if self._http is None or self._receiver is None:
            return
        message = decode_message(data)
        if message.method == Cancelled.METHOD and message.params is not UNSET:
            request_id = decode_lenient(_cancelled_decoder, message.params).request_id
            self._receiver.forget(request_id)
            self._http.cancel(request_id, data)
            return
        is_request = isinstance(message.method, str) and message.id is not UNSET
        if message.method == InitializeParams.METHOD and message.id is not UNSET:
            self._receiver.greeting = message.id
        elif message.method == Initialized.METHOD:
            self._http.set_version(self._receiver.version, is_modern=False)
        self._http.send(Outgoing(data, message.id if is_request and message.id is not UNSET else None))
        if message.method == Initialized.METHOD:
            self._http.listen()

    def deliver_first(self, request_id: RequestId) -> None:
        """Deliver the result of the request `request_id` before any message that belongs to no request, even if
        such a message arrives first.
        """
        if self._receiver is not None:
            self._receiver.first.add(request_id)

    async def close(self) -> None:
        self._drop()
        if self._closing:
            await asyncio.wait(self._closing)

    def _drop(self) -> None:
        """Close the current session in the background."""
        if self._http is not None and self._receiver is not None:
            task = asyncio.create_task(_close(self._http, self._receiver))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._http = self._receiver = None

    # --- called by the receiver ------------------------------------------------------------

    def received(self, frame: bytes) -> None:
        self._on_message(frame)

    def ended(self) -> None:
        self._on_end(None)

    def cancel(self, request_id: RequestId) -> None:
        """Cancel the stream request `request_id`. The result of the request was lost.

        The server may have opened the stream. Without the cancellation, the stream that the client opens next would
        replace the lost stream, and the server would report the end of the lost stream. The client would mistake
        this report for the end of the new stream.
        """
        if self._http is not None:
            notice = encode(Cancelled(request_id=request_id))
            self._http.send(Outgoing(notification(Cancelled.METHOD, notice)))

    def failed(self, request_id: RequestId, error: SessionError) -> None:
        self._on_failed(request_id, _client_error(self.url, error))


async def _close(http: StreamableHttp, receiver: _Receiver) -> None:
    try:
        if not receiver.has_ended:
            await http.flush(within_seconds=FLUSH_SECONDS)
    finally:
        receiver.end()
        await http.close(within_seconds=CLOSE_SECONDS)


class _Receiver:
    """Receives the messages of one session, and delivers them to the client. Delivers the results of the requests
    in `first` before messages that belong to no request.
    """

    limit: int | None = MAX_MESSAGE_BYTES
    """The maximum size of a message, in bytes; None means no limit."""

    def __init__(self, server: RemoteServer) -> None:
        self._server: RemoteServer | None = server
        self.greeting: RequestId | None = None
        """The id of the `initialize` request, whose result contains the protocol version; None until the request is
        sent.
        """
        self.version = ""
        self.first: set[RequestId] = set()
        """The ids of the requests whose results must be delivered before any message that belongs to no request.
        """
        self._held: deque[bytes] = deque()
        self._held_bytes = 0

    def receive(self, frame: bytes, *, of_request: RequestId | None = None) -> bool:
        try:
            message = decode_message(frame)
        except msgspec.DecodeError:
            raise UnreadableAnswer from None
        is_answer = not isinstance(message.method, str)
        if is_answer and of_request is not None and message.id != of_request:
            raise UnreadableAnswer  # for example, the id is "1" instead of 1
        if of_request is None and not is_answer and self.first:
            self._held.append(frame)
            self._held_bytes += len(frame)
            if self._held_bytes > MAX_MESSAGE_BYTES:
                self.end()
            return False
        if is_answer and of_request is not None and of_request == self.greeting and message.result is not UNSET:
            self.version = decode_lenient(_negotiated_decoder, message.result).protocol_version
        self._deliver(frame)
        if is_answer and of_request is not None:
            self.forget(of_request)
        return is_answer

    def fail(self, request_id: RequestId, error: SessionError) -> None:
        if self._server is None:
            return
        if not self.version and isinstance(error, SessionLost) and not isinstance(error, CannotReach):
            error = CannotReach("the connection was closed before a response arrived")
        if isinstance(error, CannotReach) and self.version:
            self.end()  # the server has ended, so all its calls are lost
        else:
            if request_id in self.first and isinstance(error, SessionLost):
                self._server.cancel(request_id)
            self._server.failed(request_id, error)
            self.forget(request_id)

    def forget(self, request_id: RequestId) -> None:
        """Stop waiting for the result of a request. If `first` is then empty, deliver the messages that were held
        back until the results of these requests had been delivered.
        """
        self.first.discard(request_id)
        while self._held and not self.first:
            self._deliver(frame := self._held.popleft())
            self._held_bytes -= len(frame)

    @property
    def has_ended(self) -> bool:
        return self._server is None

    def end(self) -> None:
        """Report the end of the session to the client. Further calls do nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.ended()

    def detach(self) -> None:
        """Stop delivering messages, errors and the end of the session to the client."""
        self._server = None

    def _deliver(self, frame: bytes) -> None:
        if self._server is not None:
            self._server.received(frame)


def _client_error(url: str, error: SessionError) -> ClientError | None:
    """Convert an error of the HTTP session to the error that the caller of a request gets. Return None if the
    connection was lost.
    """
    match error:
        case CannotReach():
            return ServerUnreachable(url, error.detail)
        case SessionLost():
            return None
        case HttpRefused():
            return ServerRefused(url, error.status, error.reason)
        case Redirected():
            return ServerRefused(url, HTTPStatus.TEMPORARY_REDIRECT, str(error))
        case _:
            hint = f"{error}; is {shown_url(url)} the URL of an MCP server?"
            return RequestFailed(INTERNAL_ERROR, hint)
