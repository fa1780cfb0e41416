"""Speaking with a tool server through the official client library.

With `bodies.py` the only module that imports the library, and therefore never imported at start-up:
see `library.py`. Knows nothing of conversations, nor when a server is started or ended.
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
from parley.tools.servers.bodies import Exchange, looked_at
from parley.tools.servers.depth import cut_short
from parley.tools.servers.failures import (
    LOST,
    TIMED_OUT,
    UNREADABLE,
    one_line,
    refusal,
    too_long,
)
from parley.tools.servers.message_limits import MAX_INITIALIZE_BYTES, excess
from parley.tools.servers.offers import Offers
from parley.tools.servers.program import PIPE_SECONDS, Program
from parley.version import __version__
from parley.wire.framing import PREFIX_BYTES, SUFFIX_BYTES, LineFramer, Overlong
from parley.wire.jsonrpc import NestedTooDeeply, decode_lenient, read_outline

__all__ = [
    "OnProgress",
    "Session",
    "Streams",
    "in_words",
    "over_http",
    "over_pipes",
    "talking",
    "warm_up",
]

log: Final = logging.getLogger(__name__)

Streams = tuple[Any, Any]
"""What the library reads from and writes to."""

OnProgress = Callable[[float, float | None, str | None], None]
"""Told how far a call is, of how much, and what the server says to it."""

MAX_PAGES: Final = 100
"""How many pages a list of tools may have: a list that never ends must not hold up anybody."""

CONNECT_SECONDS: Final = 30.0
"""How long a far server may take to accept a connection or a request. Its answer may take longer:
what a call waits for is the caller's business."""

CLOSED: Final = "Connection closed"
"""The library's words for it."""

REFUSED: Final = (
    (INTERNAL_ERROR, "Server returned an error response"),
    (INVALID_REQUEST, "Session terminated"),
    (METHOD_NOT_FOUND, "Not Found"),
)
"""What the library says in place of a far server that answered with a status and nothing else."""

RESULT_KEYS: Final = ("content", "structuredContent", "isError")

HEARD: Final = ("notifications/progress", "notifications/cancelled", "notifications/tools/list_changed")
"""The notifications that the session acts on."""

_json: Final = msgspec.json.Decoder()

_exchange: Final[ContextVar[Exchange | None]] = ContextVar("exchange", default=None)
"""What is being asked: the library makes each HTTP request in the context of whoever wanted it."""

for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # below that they log addresses and session ids
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)  # its errors hold what a server said


class Session:
    """One tool server that was reached."""

    def __init__(self, client: ClientSession, dispatcher: JSONRPCDispatcher[Any], name: str) -> None:
        self._client, self._dispatcher, self._name = client, dispatcher, name
        self._complaint = ""
        self.is_closed = False
        """Whether a call has found the server gone."""

    async def initialize(self, *, within_seconds: float) -> None:
        """Get acquainted; `in_words` has what may go wrong."""
        with anyio.fail_after(within_seconds), _reasons():
            await self._client.initialize()

    async def tools(self, *, within_seconds: float) -> tuple[ToolSpec, ...]:
        """Its tools under their own names; `in_words` has what may go wrong."""
        offers = Offers()
        params: dict[str, Any] | None = None
        with anyio.fail_after(within_seconds), _reasons():
            for _ in range(MAX_PAGES):
                try:
                    # Not `list_tools`: that takes all tools or none.
                    page = await self._dispatcher.send_raw_request("tools/list", params)
                except MCPError as error:
                    if error.code == METHOD_NOT_FOUND:
                        return ()
                    raise
                tools, cursor = page.get("tools"), page.get("nextCursor")
                if not isinstance(tools, list):
                    raise NotStarted(UNREADABLE)
                offers.add(tools)
                if not isinstance(cursor, str) or offers.is_full:
                    break
                params = {"cursor": cursor}
        if offers.complaint not in ("", self._complaint):  # once, however often the list changes
            self._complaint = offers.complaint
            log.warning("tool server %s: %s", self._name, self._complaint)
        return tuple(offers.tools)

    async def call(self, tool: str, arguments: dict[str, Any] | None, tell: OnProgress) -> dict[str, Any]:
        """Call a tool and return its result as it came. Cancelling tells the server to stop.

        Raises:
            CallFailed: there is no result.
        """

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            tell(progress, total, message)

        exchange = Exchange()
        _exchange.set(exchange)
        params = {"name": tool} if arguments is None else {"name": tool, "arguments": arguments}
        try:
            # Not `call_tool`: its validation keeps kilobytes for each value that does not fit.
            result = await self._dispatcher.send_raw_request("tools/call", params, {"on_progress": on_progress})
        except MCPError as error:
            words = _of_the_library(error.error)
            self.is_closed |= error.code == CONNECTION_CLOSED and error.error.message == CLOSED
            if words is not None or (error.code, error.error.message) in REFUSED:
                raise CallFailed(exchange.why or words) from None
            log.info("call of %s: error %d: %s", tool, error.code, one_line(error.error.message))
            raise CallFailed(None) from None
        if not _is_tool_result(result):
            raise CallFailed(UNREADABLE)
        if not isinstance(result.get("isError", False), bool):
            del result["isError"]
        return {key: result[key] for key in RESULT_KEYS if key in result}


@asynccontextmanager
async def talking(streams: Streams, name: str, *, tools_changed: Callable[[], None]) -> AsyncIterator[Session]:
    """A session over these streams with the server of that name. Entered and left in one task; used from any."""

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            tools_changed()

    read: Any = _Expected(streams[0])
    write = streams[1]
    info = Implementation(name="parley", version=__version__)
    dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(read, write)
    async with ClientSession(dispatcher=dispatcher, message_handler=on_message, client_info=info) as client:
        yield Session(client, dispatcher, name)


@contextmanager
def _reasons() -> Iterator[None]:
    """Raise the reason that HTTP or the body of the answer gives for a failure, if there is one."""
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


class _Expected:
    """The messages of a tool server, without those that the session has no use for.

    The library validates every request and notification, at a cost of kilobytes for each value that does not fit.
    """

    def __init__(self, received: Any) -> None:
        self._received = received

    @property
    def last_context(self) -> Any:
        return getattr(self._received, "last_context", None)

    async def __aenter__(self) -> _Expected:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._received.aclose()

    async def __aiter__(self) -> AsyncIterator[SessionMessage | Exception]:
        async for item in self._received:
            message = item.message if isinstance(item, SessionMessage) else None
            if isinstance(message, JSONRPCNotification) and message.method not in HEARD:
                continue
            if isinstance(message, JSONRPCRequest) and message.method != "ping":
                message.params = None  # refused by the library, whatever it asks for
            yield item


# --- a program ---------------------------------------------------------------------------


@asynccontextmanager
async def over_pipes(program: Program, *, max_bytes: int, lost: Callable[[], None]) -> AsyncIterator[Streams]:
    """The way to a program; `lost` is called when it ends or falls silent for good.

    An answer of more than `max_bytes` is read to its end, not kept, and passed on as an error.
    """
    to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    hearing = asyncio.create_task(_hear(program, to_session, max_bytes, lost))
    others = [
        asyncio.create_task(_say(program, from_session, hearing)),
        asyncio.create_task(_watch(program, hearing)),
    ]
    try:
        yield read, write
    finally:
        for task in (hearing, *others):
            task.cancel()
        await asyncio.gather(hearing, *others, return_exceptions=True)
        for stream in (to_session, read, write, from_session):
            stream.close()


async def _hear(
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
                        limit = max_bytes  # the first answer is the one to `initialize`
                    await to_session.send(message)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the session is over
    finally:
        lost()
        to_session.close()


async def _say(
    program: Program, from_session: MemoryObjectReceiveStream[SessionMessage], hearing: asyncio.Task[None]
) -> None:
    try:
        async for message in from_session:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await program.write(line.encode() + b"\n")
    except OSError:
        hearing.cancel()  # whoever does not listen cannot answer
    finally:
        from_session.close()


async def _watch(program: Program, hearing: asyncio.Task[None]) -> None:
    await program.wait()
    await asyncio.wait([hearing], timeout=PIPE_SECONDS)
    hearing.cancel()


def _value(frame: bytes) -> Any:
    try:
        return decode_lenient(_json, frame)
    except NestedTooDeeply:
        return decode_lenient(_json, cut_short(frame))


def _message(frame: bytes | Overlong, max_bytes: int) -> SessionMessage | None:
    """What a line says. For an answer that cannot be read: that, so that nobody waits for it."""
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
    log.info("skipped what a tool server said: %s", one_line(prefix.decode("utf-8", "backslashreplace")))
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
    """The way to an address; `answered` hears the status of every answer to a message.

    Reading ends where a message gets longer than `max_bytes`.
    The library follows no redirect to another origin, so the token stays where it belongs.
    """

    async def on_response(response: httpx2.Response) -> None:
        if response.request.method == "POST":
            answered(response.status_code, response.reason_phrase)
        response.stream = looked_at(response, _exchange.get() or Exchange(), max_bytes=max_bytes)

    tls = await asyncio.to_thread(httpx2.create_ssl_context)  # reads every certificate there is
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
    """Have the library load the half of itself that it would otherwise load when it is first used."""

    async def use() -> None:
        with anyio.CancelScope():
            async with anyio.create_task_group():
                pass

    anyio.run(use)


def in_words(error: BaseException) -> str:
    """Why a server could not be reached, or did not answer as it should."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case NotStarted():
            return error.detail
        case TimeoutError() | httpx2.TimeoutException():
            return TIMED_OUT
        case MCPError():
            return _of_the_library(error.error) or one_line(error.error.message)
        case ValidationError():
            return UNREADABLE
        case OSError():
            return one_line(os_detail(error))
        case _:
            return one_line(str(error)) or type(error).__name__


def _of_the_library(error: ErrorData) -> str | None:
    """What an error means that the library made up, or we, because there was no answer; None for an answer."""
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
