"""The client: one server process, and all that can be asked of it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from os import PathLike
from typing import IO, Final, Unpack

import msgspec
from msgspec import UNSET, Raw

from parley.client.child import Child
from parley.client.connection import Connection, typed_value
from parley.client.conversation import Conversation
from parley.client.errors import Disconnected
from parley.client.options import CodexOptions, CreateOptions, ListOptions
from parley.client.questions import OnQuestion, OpenQuestion, ask
from parley.client.running import OnEvent, Running, tool_result
from parley.client.streams import Streams
from parley.version import __version__
from parley.wire.elicitation import ElicitationParams
from parley.wire.events import Decision, decode_event
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RequestId,
    decode_lenient,
    encode,
    error_response,
    response,
)
from parley.wire.mcp import (
    FULL_VERSION,
    CallToolResult,
    Cancelled,
    ClientCapabilities,
    ElicitationCapability,
    Implementation,
    Initialized,
    InitializeParams,
    InitializeResult,
    ListToolsResult,
    Ping,
    ToolDefinition,
)
from parley.wire.notifications import CodexEvent, InitialState, StreamDisconnected
from parley.wire.tools import ApprovalsListResult, ConversationCreated, ConversationsListResult, PlainOk

__all__ = ["Client", "connect"]

log: Final = logging.getLogger("parley.client")


_MCP_NOTIFICATION: Final = "notifications/"
"""What is not an event: the method of an event is its bare type."""

_questions: Final = msgspec.json.Decoder(ElicitationParams)
_codex_events: Final = msgspec.json.Decoder(CodexEvent)
_cancellations: Final = msgspec.json.Decoder(Cancelled)
_initialize_results: Final = msgspec.json.Decoder(InitializeResult)
_tool_lists: Final = msgspec.json.Decoder(ListToolsResult)


@asynccontextmanager
async def connect(
    command: Sequence[str] = (sys.executable, "-P", "-m", "parley", "mcp"),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | PathLike[str] | None = None,
    stderr: int | IO[bytes] | None = None,
    protocol_version: str = FULL_VERSION,
    client_name: str = "parley-client",
    on_question: OnQuestion | None = None,
    on_frame: Callable[[bytes], None] | None = None,
) -> AsyncIterator[Client]:
    """Start a server, shake hands, and end it behind the block.

    `env` is the server's whole environment and `stderr` the place for its log, as for
    `subprocess`. `on_question` answers approvals; without it the server is told that it cannot
    ask. `on_frame` sees every message of the server as it came, before anything else does.

    Raises:
        OSError: the server cannot be started.
        Disconnected: it ended before it answered.
    """
    client = Client(on_question=on_question, on_frame=on_frame)
    await client.start(command, env=env, cwd=cwd, stderr=stderr)
    try:
        await client.initialize(protocol_version, client_name)
        yield client
    finally:
        await client.close()


class Client:
    """Made by `connect`. Many calls may run at once; each waits for its own answer alone.

    Typed calls raise `ToolFailed` when the tool behind them failed; all raise `Disconnected` once
    the server is gone.
    """

    process: Child
    """The server's process: its pid, its exit code, ways to end it."""
    initialize_result: InitializeResult

    def __init__(self, *, on_question: OnQuestion | None, on_frame: Callable[[bytes], None] | None) -> None:
        self._on_question = on_question
        self._streams = Streams()
        self._listeners: dict[RequestId, OnEvent] = {}
        self._asked: dict[RequestId, asyncio.Task[None]] = {}
        self._connection = Connection(
            on_notification=self._take_notification,
            on_request=self._take_request,
            on_frame=on_frame,
            on_gone=self._streams.lose_all,
        )
        self._notices: Final[Mapping[str, Callable[[Raw], None]]] = {
            InitialState.METHOD: self._streams.take_initial_state,
            StreamDisconnected.METHOD: self._streams.take_disconnect,
            CodexEvent.METHOD: self._take_codex_event,
            Cancelled.METHOD: self._take_cancellation,
        }

    # --- beginning and end ---------------------------------------------------------------

    async def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> None:
        """Start the server's process."""
        connection = self._connection
        self.process = connection.child = await Child.start(
            command,
            on_line=connection.take_line,
            on_end=connection.take_end,
            env=env,
            cwd=cwd,
            stderr=stderr,
        )

    async def initialize(self, protocol_version: str, client_name: str) -> None:
        """Shake hands."""
        can_be_asked = UNSET if self._on_question is None else ElicitationCapability()
        params = InitializeParams(
            protocol_version=protocol_version,
            capabilities=ClientCapabilities(elicitation=can_be_asked),
            client_info=Implementation(name=client_name, version=__version__),
        )
        result = await self.request(InitializeParams.METHOD, params)
        self.initialize_result = decode_lenient(_initialize_results, result)
        await self.notify(Initialized.METHOD)

    async def close(self) -> None:
        """End the server: close its stdin, and insist if it does not go. No process and no task is left."""
        try:
            await self.process.close()
        finally:
            asked = tuple(self._asked.values())
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    # --- conversations -------------------------------------------------------------------

    async def create(
        self,
        *,
        cwd: str | PathLike[str],
        model: str | None = None,
        prompt: str = "",
        **options: Unpack[CreateOptions],
    ) -> Conversation:
        """Open a new conversation; nothing is sent to the model yet. Servers at 2025-06-18 need the model."""
        tool = "conversationCreate"
        named = {} if model is None else {"model": model}
        call = self._connection.call_tool(tool, {"prompt": prompt, **named, "cwd": str(cwd), **options})
        created = typed_value(tool, await call.result, ConversationCreated)
        return Conversation(self._connection, self._streams, created.conversation_id, created.model)

    def conversation(self, conversation_id: str) -> Conversation:
        """A handle for a conversation that exists already, whoever created it."""
        return Conversation(self._connection, self._streams, ConversationId(conversation_id))

    async def list(self, **wanted: Unpack[ListOptions]) -> ConversationsListResult:
        """A page of the conversations of the home, latest activity first: of all, or of those that are wanted."""
        tool = "conversationsList"
        given = {name: value for name, value in wanted.items() if value is not None}
        return typed_value(tool, await self._connection.call_tool(tool, given).result, ConversationsListResult)

    # --- questions -----------------------------------------------------------------------

    async def approvals(self, conversation: str | None = None) -> tuple[OpenQuestion, ...]:
        """The questions that wait for an answer, whoever was asked: of all conversations, or of one by its id."""
        tool = "approvalsList"
        given = {} if conversation is None else {"conversation_id": conversation}
        return typed_value(
            tool, await self._connection.call_tool(tool, given).result, ApprovalsListResult
        ).approvals

    async def answer(self, approval_id: str, decision: Decision, *, reason: str | None = None) -> None:
        """Settle a question for whoever was asked; of several answers the first counts."""
        tool = "approvalAnswer"
        given = {"approval_id": approval_id, "decision": decision}
        call = self._connection.call_tool(tool, given if reason is None else {**given, "reason": reason})
        typed_value(tool, await call.result, PlainOk)

    # --- codex and codex-reply -----------------------------------------------------------

    def codex(
        self,
        prompt: str,
        *,
        progress_token: RequestId | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[CodexOptions],
    ) -> Running:
        """Start a session and run one turn; await the returned object for its result."""
        arguments = {name.replace("_", "-"): value for name, value in options.items()}
        return self._run("codex", {"prompt": prompt, **arguments}, progress_token, on_event)

    def codex_reply(
        self,
        session_id: str,
        prompt: str,
        *,
        progress_token: RequestId | None = None,
        on_event: OnEvent | None = None,
    ) -> Running:
        """Continue a session, or join its running turn."""
        return self._run("codex-reply", {"sessionId": session_id, "prompt": prompt}, progress_token, on_event)

    def _run(
        self, tool: str, arguments: object, progress_token: RequestId | None, on_event: OnEvent | None
    ) -> Running:
        call = self._connection.call_tool(tool, arguments, progress_token=progress_token)
        if on_event is not None:
            self._listeners[call.request_id] = on_event
            call.result.add_done_callback(lambda _: self._listeners.pop(call.request_id, None))
        return Running(self._connection, call)

    # --- anything ------------------------------------------------------------------------

    async def ping(self) -> None:
        await self.request(Ping.METHOD)

    async def list_tools(self) -> tuple[ToolDefinition, ...]:
        return decode_lenient(_tool_lists, await self.request(ListToolsResult.METHOD)).tools

    async def call_tool(self, name: str, arguments: object = None) -> CallToolResult:
        """Call any tool; a result that says `isError` is returned like any other."""
        return await tool_result(self._connection.call_tool(name, {} if arguments is None else arguments))

    async def request(self, method: str, params: object = None) -> bytes:
        """Send any request; its result as the JSON it came as.

        Raises:
            RequestFailed: the answer is a JSON-RPC error.
            Disconnected: the server is gone.
        """
        return bytes(await self._connection.request(method, params).result)

    async def notify(self, method: str, params: object = None) -> None:
        self._connection.notify(method, params)

    def send_raw(self, data: bytes) -> None:
        """Write bytes as they are; a message needs its own line end."""
        self._connection.write_raw(data)

    # --- from the server -----------------------------------------------------------------

    def _take_notification(self, method: str, params: Raw) -> None:
        if (take := self._notices.get(method)) is not None:
            take(params)
        elif not method.startswith(_MCP_NOTIFICATION):
            self._streams.take_event(params)

    def _take_codex_event(self, params: Raw) -> None:
        happened = decode_lenient(_codex_events, params)
        if (on_event := self._listeners.get(happened.meta.request_id)) is not None:
            on_event(decode_event(happened.msg))

    def _take_cancellation(self, params: Raw) -> None:
        """A question needs no answer any more."""
        request_id = decode_lenient(_cancellations, params).request_id
        if (task := self._asked.get(request_id)) is not None:
            task.cancel()

    def _take_request(self, request_id: RequestId, method: str, params: Raw) -> None:
        if method == Ping.METHOD:
            self._connection.write(response(request_id, b"{}"))
        elif method == ElicitationParams.METHOD and self._on_question is not None:
            task = asyncio.create_task(self._answer(request_id, params, self._on_question))
            self._asked[request_id] = task
            task.add_done_callback(lambda _: self._asked.pop(request_id, None))
        else:
            self._connection.write(error_response(request_id, METHOD_NOT_FOUND, f"no method {method}"))

    async def _answer(self, request_id: RequestId, params: Raw, on_question: OnQuestion) -> None:
        try:
            question = decode_lenient(_questions, params)
        except msgspec.DecodeError as error:
            self._connection.write(error_response(request_id, INVALID_PARAMS, str(error)))
            return
        try:
            frame = response(request_id, encode(await ask(on_question, question)))
        except Exception:
            log.exception("the callback for questions failed")
            frame = error_response(request_id, INTERNAL_ERROR, "the client could not answer")
        try:
            self._connection.write(frame)
        except Disconnected:
            pass  # nobody waits for the answer any more
