"""A session with a tool server, through the MCP client library.

This module and `bodies.py` are the only ones that import the library, so they are not imported at start-up (see
`library.py`). Does not know conversations, nor when a server is started or ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, Final

import anyio
import httpx2
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ErrorData,
    Implementation,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from parley.common.os_errors import os_detail
from parley.ports.model import ToolSpec
from parley.tools.errors import CallFailed, NotStarted
from parley.tools.servers.bodies import Exchange, checked_body
from parley.tools.servers.depth import cut_nesting
from parley.tools.servers.failures import (
    LOST,
    TIMED_OUT,
    UNREADABLE,
    one_line,
    refusal,
    too_long,
)
from parley.tools.servers.message_limits import MAX_INITIALIZE_BYTES, excess
from parley.tools.servers.program import PIPE_SECONDS, Program
from parley.tools.servers.tool_list import ToolList
from parley.version import __version__
from parley.wire.framing import PREFIX_BYTES, SUFFIX_BYTES, LineFramer, Overlong
from parley.wire.jsonrpc import NestedTooDeeply, decode_lenient, read_outline

__all__ = [
    "OnProgress",
    "Session",
    "Streams",
    "describe_error",
    "open_session",
    "over_http",
    "over_pipes",
    "warm_up",
]

log: Final = logging.getLogger(__name__)

Streams = tuple[Any, Any]
"""The library's stream to read from and its stream to write to."""

OnProgress = Callable[[float, float | None, str | None], None]
"""Called with the progress of a call, its total and the server's message."""

MAX_PAGES: Final = 100
"""How many pages of a list of tools are read."""

CONNECT_SECONDS: Final = 30.0
"""How long an HTTP server may take to accept a connection or a request. The caller limits
the time of the answer."""

CLOSED: Final = "Connection closed"
"""The library's message for a connection that has ended."""

REFUSED: Final = (
    (INTERNAL_ERROR, "Server returned an error response"),
    (INVALID_REQUEST, "Session terminated"),
    (METHOD_NOT_FOUND, "Not Found"),
)
"""The messages with which the library reports an HTTP status that had no message."""

RESULT_KEYS: Final = ("content", "structuredContent", "isError")

NOTIFICATIONS: Final = (
    "notifications/progress",
    "notifications/cancelled",
    "notifications/tools/list_changed",
)
"""The notifications that the session acts on."""

_json: Final = msgspec.json.Decoder()

_exchange: Final[ContextVar[Exchange | None]] = ContextVar("exchange", default=None)
"""The current request: the library makes each HTTP request in the context of its caller."""

for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # at lower levels they log addresses and session ids
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)  # its errors quote the server


class Session:
    """A session with a connected tool server."""

    def __init__(self, client: ClientSession, dispatcher: JSONRPCDispatcher[Any], name: str) -> None:
        self._client, self._dispatcher, self._name = client, dispatcher, name
        self._complaint = ""
        self.is_closed = False
        """True once a call has found the connection closed."""

    async def initialize(self, *, within_seconds: float) -> None:
        """Send `initialize`. `describe_error` describes the errors that this method raises."""
        with anyio.fail_after(within_seconds), _reasons():
            await self._client.initialize()

    async def tools(self, *, within_seconds: float) -> tuple[ToolSpec, ...]:
        """Return the tools of the server, under the names that the server gave. `describe_error` describes the
        errors that this method raises.
        """
        tool_list = ToolList()
        params: dict[str, Any] | None = None
        with anyio.fail_after(within_seconds), _reasons():
            for _ in range(MAX_PAGES):
                try:
                    # Not `list_tools`: it refuses the whole list for one invalid tool.
                    page = await self._dispatcher.send_raw_request("tools/list", params)
                except MCPError as error:
                    if error.code == METHOD_NOT_FOUND:
                        return ()
                    raise
                tools, cursor = page.get("tools"), page.get("nextCursor")
                if not isinstance(tools, list):
                    raise NotStarted(UNREADABLE)
                tool_list.add(tools)
                if not isinstance(cursor, str) or tool_list.is_full:
                    break
                params = {"cursor": cursor}
        if tool_list.complaint not in ("", self._complaint):  # logged once, however often the list changes
            self._complaint = tool_list.complaint
            log.warning("tool server %s: %s", self._name, self._complaint)
        return tuple(tool_list.tools)

    async def call(self, tool: str, arguments: dict[str, Any] | None, report: OnProgress) -> dict[str, Any]:
        """Call a tool and return its result unchanged. Cancelling tells the server to stop.

        Raises:
            CallFailed: there is no result.
        """

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            report(progress, total, message)

        exchange = Exchange()
        _exchange.set(exchange)
        params = {"name": tool} if arguments is None else {"name": tool, "arguments": arguments}
        try:
            # Not `call_tool`: its validation keeps kilobytes for each invalid value.
            result = await self._dispatcher.send_raw_request("tools/call", params, {"on_progress": on_progress})
        except MCPError as error:
            text = _library_error(error.error)
            self.is_closed |= error.code == CONNECTION_CLOSED and error.error.message == CLOSED
            if text is not None or (error.code, error.error.message) in REFUSED:
                raise CallFailed(exchange.why or text) from None
            log.info("call of %s: error %d: %s", tool, error.code, one_line(error.error.message))
            raise CallFailed(None) from None
        if not _is_tool_result(result):
            raise CallFailed(UNREADABLE)
        if not isinstance(result.get("isError", False), bool):
            del result["isError"]
        return {key: result[key] for key in RESULT_KEYS if key in result}


@asynccontextmanager
async def open_session(streams: Streams, name: str, *, tools_changed: Callable[[], None]) -> AsyncIterator[Session]:
    """Open a session over these streams with the server of this name.

    The context must be entered and left in the same task. Any task may use the session.
    """

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            tools_changed()

    read: Any = _FilteredMessages(streams[0])
    write = streams[1]
    info = Implementation(name="parley", version=__version__)
    dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(read, write)
    async with ClientSession(dispatcher=dispatcher, message_handler=on_message, client_info=info) as client:
        yield Session(client, dispatcher, name)


@contextmanager
def _reasons() -> Iterator[None]:
    """Raise the reason that the HTTP status or the body gives for a failure, if there is one."""
    exchange = Exchange()
    _exchange.set(exchange)
    try:
        yield
    except MCPError:
        if exchange.why is not None:
            raise NotStarted(exchange.why) from None
        raise


def _is_tool_result(result: dict[str, Any]) -> bool:
    content, structured = result.get("content"), result.get("structuredContent", {})
    if not isinstance(content, list) or not isinstance(structured, dict):
        return False
    return all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content)


class _FilteredMessages:
    """The messages of a tool server, without those that the session does not need.

    The library validates every request and notification, and keeps kilobytes for each invalid value.
    """

    def __init__(self, received: Any) -> None:
        self._received = received

    @property
    def last_context(self) -> Any:
        return getattr(self._received, "last_context", None)

    async def __aenter__(self) -> _FilteredMessages:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._received.aclose()

    async def __aiter__(self) -> AsyncIterator[SessionMessage | Exception]:
        async for item in self._received:
            message = item.message if isinstance(item, SessionMessage) else None
            if isinstance(message, JSONRPCNotification) and message.method not in NOTIFICATIONS:
                continue
            if isinstance(message, JSONRPCRequest) and message.method != "ping":
                message.params = None  # the library refuses the request anyway
            yield item


# --- a program ---------------------------------------------------------------------------


@asynccontextmanager
async def over_pipes(program: Program, *, max_bytes: int, lost: Callable[[], None]) -> AsyncIterator[Streams]:
    """Yield streams to a program. `lost` is called when the program ends or closes its output.

    A message of more than `max_bytes` is skipped, and an answer is replaced by an error.
    """
    to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    receiving = asyncio.create_task(_receive(program, to_session, max_bytes, lost))
    others = [
        asyncio.create_task(_send(program, from_session, receiving)),
        asyncio.create_task(_watch(program, receiving)),
    ]
    try:
        yield read, write
    finally:
        for task in (receiving, *others):
            task.cancel()
        await asyncio.gather(receiving, *others, return_exceptions=True)
        for stream in (to_session, read, write, from_session):
            stream.close()


async def _receive(
    program: Program,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    max_bytes: int,
    lost: Callable[[], None],
) -> None:
    framer, limit = LineFramer(max_bytes), min(max_bytes, MAX_INITIALIZE_BYTES)
    try:
        while data := await program.read():
            for frame in framer.feed(data):
                message = _message(frame, limit)
                if message is not None:
                    if isinstance(message.message, JSONRPCResponse):
                        limit = max_bytes  # the first answer is that to `initialize`
                    await to_session.send(message)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the session is over
    finally:
        lost()
        to_session.close()


async def _send(
    program: Program, from_session: MemoryObjectReceiveStream[SessionMessage], receiving: asyncio.Task[None]
) -> None:
    try:
        async for message in from_session:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await program.write(line.encode() + b"\n")
    except OSError:
        receiving.cancel()  # a program that does not read cannot answer
    finally:
        from_session.close()


async def _watch(program: Program, receiving: asyncio.Task[None]) -> None:
    await program.wait()
    await asyncio.wait([receiving], timeout=PIPE_SECONDS)
    receiving.cancel()


def _value(frame: bytes) -> Any:
    try:
        return decode_lenient(_json, frame)
    except NestedTooDeeply:
        return decode_lenient(_json, cut_nesting(frame))


def _message(frame: bytes | Overlong, max_bytes: int) -> SessionMessage | None:
    """Decode a line. An answer that cannot be decoded becomes an error, so that its caller does not wait."""
    if isinstance(frame, Overlong):
        prefix, suffix, why = frame.prefix, frame.suffix, too_long(max_bytes)
    elif (beyond := excess(frame, max_bytes)) is not None:
        prefix, suffix, why = frame[:PREFIX_BYTES], frame[-SUFFIX_BYTES:], beyond
    elif not frame or frame.isspace():
        return None
    else:
        try:
            message = jsonrpc_message_adapter.validate_python(_value(frame), by_name=False)
        except (msgspec.DecodeError, ValueError):
            prefix, suffix, why = frame[:PREFIX_BYTES], frame[-SUFFIX_BYTES:], UNREADABLE
        else:
            return SessionMessage(message)
    log.info("skipped a message of a tool server: %s", one_line(prefix.decode("utf-8", "backslashreplace")))
    request_id = read_outline(prefix, suffix).id
    if request_id is None:
        return None
    error = ErrorData(code=PARSE_ERROR, message=why)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


# --- an address --------------------------------------------------------------------------


@asynccontextmanager
async def over_http(
    url: str, token: str | None, *, max_bytes: int, answered: Callable[[int, str], None]
) -> AsyncIterator[Streams]:
    """Yield streams to an HTTP server. `answered` is called with the status of each response to a message.

    Reading fails at a message longer than `max_bytes`. The library follows no redirect to another origin, so the
    token is sent only to this one.
    """

    async def on_response(response: httpx2.Response) -> None:
        if response.request.method == "POST":
            answered(response.status_code, response.reason_phrase)
        response.stream = checked_body(response, _exchange.get() or Exchange(), max_bytes=max_bytes)

    tls = await asyncio.to_thread(httpx2.create_ssl_context)  # reads all certificates of the system
    headers = {"accept-encoding": "identity"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    async with (
        httpx2.AsyncClient(
            headers=headers,
            verify=tls,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            event_hooks={"response": [on_response]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams


# --- loading and failures ----------------------------------------------------------------------------


def warm_up() -> None:
    """Make the library import the modules that it would import at its first use."""

    async def use() -> None:
        with anyio.CancelScope():
            async with anyio.create_task_group():
                pass

    anyio.run(use)


def describe_error(error: BaseException) -> str:
    """Return a text for an error of a session: why the server was not reached, or gave no valid answer."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case NotStarted():
            return error.detail
        case TimeoutError() | httpx2.TimeoutException():
            return TIMED_OUT
        case MCPError():
            return _library_error(error.error) or one_line(error.error.message)
        case ValidationError():
            return UNREADABLE
        case OSError():
            return one_line(os_detail(error))
        case _:
            return one_line(str(error)) or type(error).__name__


def _library_error(error: ErrorData) -> str | None:
    """Return a text for an error that the library or `_message` made; None for an error that the server sent."""
    code, message = error.code, error.message
    if code == CONNECTION_CLOSED and message.startswith("SSE stream failed"):
        return UNREADABLE
    if code == CONNECTION_CLOSED and message.startswith((CLOSED, "SSE stream")):
        return LOST
    if code == PARSE_ERROR and message.startswith("Failed to parse"):
        return UNREADABLE
    if code == PARSE_ERROR and message.startswith("its answer "):
        return one_line(message)
    if code == INVALID_REQUEST and message.startswith("Unexpected content type"):
        return UNREADABLE
    if code == INVALID_REQUEST and message.startswith("server answered a request with 202"):
        return refusal(202, "Accepted")
    if code == INVALID_REQUEST and message.startswith("Redirect to"):
        return one_line(message)
    return None
