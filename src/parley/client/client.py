"""Defines `Client`, a connection to one server, and `connect`, which creates a client."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from os import PathLike
from typing import Final, Unpack

import msgspec
from msgspec import UNSET, Raw

from parley.client.approval import Approval, OnApproval, approval_from_list, approval_from_request
from parley.client.codex_call import CodexCall, OnEvent, tool_result
from parley.client.connection import Connection, read_result
from parley.client.conversation import Conversation
from parley.client.errors import AlreadyDecided, Disconnected
from parley.client.feeds import Feeds
from parley.client.options import CodexOptions, CreateOptions, ListOptions
from parley.client.remote_server import RemoteServer
from parley.client.resident_socket import ResidentSocket
from parley.client.server_process import ServerProcess
from parley.client.transport import Transport
from parley.version import __version__
from parley.wire.elicitation import ElicitationAnswer, ElicitationParams
from parley.wire.events import Decision, decode_event
from parley.wire.ids import START, ConversationId
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
    LogMessage,
    Ping,
    ToolDefinition,
)
from parley.wire.notifications import CodexEvent, InitialState, StreamDisconnected
from parley.wire.resources import ReadResourceParams, ReadResourceResult
from parley.wire.tools import (
    ApprovalsListResult,
    AttentionListResult,
    ConversationCreated,
    ConversationSearchResult,
    ConversationsListResult,
    PlainOk,
    SettingsListResult,
)

__all__ = ["Client", "connect"]

log: Final = logging.getLogger("parley.client")


RECONNECT_SECONDS: Final = 60.0
"""The default number of seconds for which a client tries to reconnect. This is long enough for a restart of the
server.
"""

_MCP_NOTIFICATION: Final = "notifications/"
"""The prefix of the methods of MCP's own notifications. A notification that contains an event has the type of the
event as its method, without this prefix.
"""

_elicitation_decoder: Final = msgspec.json.Decoder(ElicitationParams)
_codex_event_decoder: Final = msgspec.json.Decoder(CodexEvent)
_log_decoder: Final = msgspec.json.Decoder(LogMessage)
_cancelled_decoder: Final = msgspec.json.Decoder(Cancelled)
_initialize_result_decoder: Final = msgspec.json.Decoder(InitializeResult)
_tool_list_decoder: Final = msgspec.json.Decoder(ListToolsResult)
_resource_decoder: Final = msgspec.json.Decoder(ReadResourceResult)


@asynccontextmanager
async def connect(
    transport: Transport | None = None,
    *,
    socket: str | PathLike[str] | None = None,
    url: str | None = None,
    token: str | None = None,
    protocol_version: str = FULL_VERSION,
    client_name: str = "parley-client",
    on_approval: OnApproval | None = None,
    on_frame: Callable[[bytes], None] | None = None,
    timeout_seconds: float | None = None,
    reconnect_seconds: float = RECONNECT_SECONDS,
    on_lost: Callable[[], None] | None = None,
    on_log: Callable[[LogMessage], None] | None = None,
) -> AsyncIterator[Client]:
    """Connect to a server, and disconnect at the end of the `async with` block.

    `socket` is the path of the socket of a resident server. `url` is the URL of an HTTP server, and `token` is the
    bearer token for that server. Without `socket`, `url` and `transport`, the client uses the resident server of
    the home if one is running. Otherwise the client starts a server as a child process, and stops this server at
    the end of the block. `transport` is a transport to any other server. `protocol_version` is the MCP version that
    the client offers, and `client_name` is the name by which the server knows the client.

    `on_approval` is called with each approval that the server asks this client to decide. Without `on_approval`,
    the server does not ask this client. `on_frame` is called with every message from the server, before the message
    is handled. `timeout_seconds` limits the handshake and every call that has no timeout of its own.
    `reconnect_seconds` limits how long the client tries to reconnect to a resident or remote server; 0 disables
    reconnecting. `on_lost` is called when the connection has been lost, before the client tries to reconnect.
    `on_log` is called with every log message from the server, such as a message that the server cannot reach its
    database.

    Raises:
        TypeError: more than one of `transport`, `socket` and `url` is given, or `token` is given without `url`.
        OSError: the server cannot be started or reached, or does not accept this client.
        CallTimedOut: the server did not respond to the handshake in time.
        Disconnected: the connection ended before the handshake was complete.
    """
    if sum(given is not None for given in (transport, socket, url)) > 1:
        raise TypeError("connect takes only one of `transport`, `socket` and `url`")
    if token is not None and url is None:
        raise TypeError("`token` requires `url`")
    if url is not None:
        transport = RemoteServer(url, token=token)

    def client_of(transport: Transport) -> Client:
        return Client(
            transport,
            on_approval=on_approval,
            on_frame=on_frame,
            timeout_seconds=timeout_seconds,
            reconnect_seconds=reconnect_seconds,
            on_lost=on_lost,
            on_log=on_log,
        )

    client = client_of(ResidentSocket(socket) if transport is None else transport)
    try:
        await client.start()
    except OSError as error:
        if transport is not None or socket is not None:
            raise
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            log.info("using a child process, not a resident server: %s", error)
        client = client_of(ServerProcess())
        await client.start()
    try:
        await client.initialize(protocol_version, client_name)
        yield client
    finally:
        await client.close()


class Client:
    """A connection to a server, created by `connect`. Any number of calls can run at the same time.

    Typed calls, such as `create`, raise `ToolFailed` if their tool fails. All calls accept `timeout_seconds`. They
    raise `CallTimedOut` if no result arrives in time, and `Disconnected` if the connection to the server has ended.
    """

    initialize_result: InitializeResult

    def __init__(
        self,
        transport: Transport,
        *,
        on_approval: OnApproval | None,
        on_frame: Callable[[bytes], None] | None,
        timeout_seconds: float | None,
        reconnect_seconds: float,
        on_lost: Callable[[], None] | None = None,
        on_log: Callable[[LogMessage], None] | None = None,
    ) -> None:
        self._on_approval, self._on_lost, self._on_log = on_approval, on_lost, on_log
        self._protocol_version, self._client_name = "", ""
        self._listeners: dict[RequestId, OnEvent] = {}
        self._undecided: dict[RequestId, asyncio.Task[None]] = {}
        """The tasks that run `on_approval`, by the id of the server's request that asks for the decision."""
        self._answers: dict[RequestId, bytes] = {}
        """The encoded responses to the server's requests, by request id. If a resumed stream repeats a request, the
        client sends the response again. The dict is cleared when the connection is lost.
        """
        self._connection = Connection(
            transport,
            on_notification=self._receive_notification,
            on_request=self._receive_request,
            on_frame=on_frame,
            on_lost=self._receive_loss,
            on_restored=lambda: self._feeds.resume(),  # this is a lambda, because `_feeds` is set only below
            on_end=self._receive_end,
            handshake=self._handshake,
            timeout_seconds=timeout_seconds,
            reconnect_seconds=reconnect_seconds,
        )
        self._feeds = Feeds(self._connection)
        self._notifications: Final[Mapping[str, Callable[[Raw], None]]] = {
            InitialState.METHOD: self._feeds.receive_initial_state,
            StreamDisconnected.METHOD: self._feeds.receive_disconnected,
            CodexEvent.METHOD: self._receive_codex_event,
            Cancelled.METHOD: self._receive_cancelled,
            LogMessage.METHOD: self._receive_log,
        }

    # --- beginning and end ---------------------------------------------------------------

    async def start(self) -> None:
        """Start the transport, which connects to the server or starts the server as a child process."""
        await self._connection.start()

    async def initialize(self, protocol_version: str, client_name: str) -> None:
        """Perform the MCP handshake now, and again after each reconnection."""
        self._protocol_version, self._client_name = protocol_version, client_name
        await self._handshake()
        self._connection.establish()

    async def _handshake(self) -> None:
        elicitation = UNSET if self._on_approval is None else ElicitationCapability()
        params = InitializeParams(
            protocol_version=self._protocol_version,
            capabilities=ClientCapabilities(elicitation=elicitation),
            client_info=Implementation(name=self._client_name, version=__version__),
        )
        result = await self.request(InitializeParams.METHOD, params)
        self.initialize_result = read_result(_initialize_result_decoder, result, InitializeParams.METHOD)
        await self.notify(Initialized.METHOD)

    async def close(self) -> None:
        """Close the transport and cancel all running `on_approval` callbacks."""
        try:
            await self._connection.close()
        finally:
            await asyncio.gather(*self._cancel_approvals(), return_exceptions=True)

    # --- conversations -------------------------------------------------------------------

    async def create(
        self,
        *,
        cwd: str | PathLike[str] | None = None,
        repository: str | None = None,
        model: str | None = None,
        prompt: str = "",
        timeout_seconds: float | None = None,
        **options: Unpack[CreateOptions],
    ) -> Conversation:
        """Create a conversation in the directory `cwd`, or in the repository that has the name `repository` in the
        server's settings, and return a handle for the conversation. Nothing is sent to the model. At protocol
        version 2025-06-18 and earlier, `model` and `cwd` are required.

        The server ignores `prompt`. The tool has this argument only because protocol version 2025-06-18 and earlier
        require it.
        """
        places = {"model": model, "cwd": None if cwd is None else str(cwd), "repository": repository}
        named = {name: value for name, value in places.items() if value is not None}
        arguments = {"prompt": prompt, **named, **options}
        created = await self._connection.call_typed(
            "conversationCreate", arguments, ConversationCreated, timeout_seconds
        )
        conversation = Conversation(self._connection, self._feeds, created.conversation_id, created.model)
        self._feeds.feed(created.conversation_id).note(START)
        return conversation

    def conversation(self, conversation_id: str) -> Conversation:
        """Return a handle for an existing conversation, which any client may have created."""
        return Conversation(self._connection, self._feeds, ConversationId(conversation_id))

    async def list(
        self, *, timeout_seconds: float | None = None, **filters: Unpack[ListOptions]
    ) -> ConversationsListResult:
        """Return a page of the conversations that match `filters`. The conversation with the latest activity is
        first.
        """
        arguments = {name: value for name, value in filters.items() if value is not None}
        return await self._connection.call_typed(
            "conversationsList", arguments, ConversationsListResult, timeout_seconds, is_repeatable=True
        )

    async def attention(
        self, *, limit: int | None = None, cursor: str | None = None, timeout_seconds: float | None = None
    ) -> AttentionListResult:
        """Return a page of the conversations that need a person: conversations that are waiting for an approval,
        and unread conversations whose last turn has ended.
        """
        given = {"limit": limit, "cursor": cursor}
        arguments = {name: value for name, value in given.items() if value is not None}
        return await self._connection.call_typed(
            "attentionList", arguments, AttentionListResult, timeout_seconds, is_repeatable=True
        )

    async def search(
        self,
        text: str,
        *,
        conversation: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        timeout_seconds: float | None = None,
    ) -> ConversationSearchResult:
        """Return a page of the messages from users and agents that contain `text`; the newest message is first. If
        `conversation` is given, search only that conversation.
        """
        given = {"text": text, "conversation_id": conversation, "limit": limit, "cursor": cursor}
        arguments = {name: value for name, value in given.items() if value is not None}
        return await self._connection.call_typed(
            "conversationSearch", arguments, ConversationSearchResult, timeout_seconds, is_repeatable=True
        )

    async def settings(
        self, *, conversation: str | None = None, timeout_seconds: float | None = None
    ) -> SettingsListResult:
        """Return the models, profiles, directories, approval policies and sandbox modes that this client can
        choose, and the defaults. The result applies to the next message of `conversation`, or to a new conversation
        if `conversation` is None.
        """
        arguments = {} if conversation is None else {"conversation_id": conversation}
        return await self._connection.call_typed(
            "settingsList", arguments, SettingsListResult, timeout_seconds, is_repeatable=True
        )

    # --- approvals -----------------------------------------------------------------------

    async def approvals(
        self, conversation: str | None = None, *, timeout_seconds: float | None = None
    ) -> tuple[Approval, ...]:
        """Return the open approvals in one conversation, or in all conversations if `conversation` is None. The
        result includes approvals in turns that other clients began.
        """
        arguments = {} if conversation is None else {"conversation_id": conversation}
        found = await self._connection.call_typed(
            "approvalsList", arguments, ApprovalsListResult, timeout_seconds, is_repeatable=True
        )
        return tuple(approval_from_list(one, partial(self._answer, one.approval_id)) for one in found.approvals)

    async def answer(
        self,
        approval_id: str,
        decision: Decision,
        *,
        reason: str | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Decide an open approval. Any client may have begun the turn that is waiting for the approval. Only the
        first decision has an effect. The agent gets `reason` if the decision is a denial.

        Raises:
            ToolFailed: the approval does not exist, or was already decided or withdrawn.
        """
        arguments = {"approval_id": approval_id, "decision": decision}
        if reason is not None:
            arguments["reason"] = reason
        await self._connection.call_typed("approvalAnswer", arguments, PlainOk, timeout_seconds)

    async def _answer(
        self, approval_id: str, decision: Decision, reason: str | None, timeout_seconds: float | None
    ) -> None:
        await self.answer(approval_id, decision, reason=reason, timeout_seconds=timeout_seconds)

    # --- codex and codex-reply -----------------------------------------------------------

    def codex(
        self,
        prompt: str,
        *,
        progress_token: RequestId | None = None,
        on_event: OnEvent | None = None,
        timeout_seconds: float | None = None,
        **options: Unpack[CodexOptions],
    ) -> CodexCall:
        """Create a conversation and run one turn. Return an object for the running call; awaiting this object
        returns the result.

        `on_event` is called with each event of the turn. With a `progress_token`, the server also sends progress
        notifications, which are passed only to the `on_frame` callback of `connect`. `timeout_seconds` is the
        maximum time to wait for the result.
        """
        arguments = {"prompt": prompt, **{name.replace("_", "-"): value for name, value in options.items()}}
        return self._run("codex", arguments, progress_token, on_event, timeout_seconds)

    def codex_reply(
        self,
        session_id: str,
        prompt: str,
        *,
        progress_token: RequestId | None = None,
        on_event: OnEvent | None = None,
        timeout_seconds: float | None = None,
    ) -> CodexCall:
        """Begin another turn in a conversation, or send the message `prompt` to its running turn. Return an object
        for the running call; awaiting this object returns the result. `session_id` is the id of the conversation.
        The other arguments have the same meaning as for `codex`.
        """
        arguments = {"sessionId": session_id, "prompt": prompt}
        return self._run("codex-reply", arguments, progress_token, on_event, timeout_seconds)

    def _run(
        self,
        tool: str,
        arguments: object,
        progress_token: RequestId | None,
        on_event: OnEvent | None,
        timeout_seconds: float | None,
    ) -> CodexCall:
        call = self._connection.call_tool(tool, arguments, progress_token=progress_token)
        if on_event is not None:
            self._listeners[call.request_id] = on_event
            call.result.add_done_callback(lambda _: self._listeners.pop(call.request_id, None))
        return CodexCall(self._connection, call, timeout_seconds)

    # --- other requests ------------------------------------------------------------------

    async def ping(self, *, timeout_seconds: float | None = None) -> None:
        await self.request(Ping.METHOD, timeout_seconds=timeout_seconds)

    async def list_tools(self, *, timeout_seconds: float | None = None) -> tuple[ToolDefinition, ...]:
        result = await self.request(ListToolsResult.METHOD, timeout_seconds=timeout_seconds)
        return read_result(_tool_list_decoder, result, ListToolsResult.METHOD).tools

    async def call_tool(
        self, name: str, arguments: object = None, *, timeout_seconds: float | None = None
    ) -> CallToolResult:
        """Call any tool and return its result. If the tool fails, return the result with `isError` instead of
        raising an error.
        """
        call = self._connection.call_tool(name, {} if arguments is None else arguments)
        return await tool_result(self._connection, call, timeout_seconds)

    async def read_resource(self, uri: str, *, timeout_seconds: float | None = None) -> str:
        """Return the text of a resource, such as the transcript `parley://conversations/ID`.

        Raises:
            RequestFailed: there is no resource with this URI.
        """
        result = await self.request(
            ReadResourceParams.METHOD, ReadResourceParams(uri=uri), timeout_seconds=timeout_seconds
        )
        found = read_result(_resource_decoder, result, ReadResourceParams.METHOD)
        return "".join(str(one.text) for one in found.contents)

    async def request(self, method: str, params: object = None, *, timeout_seconds: float | None = None) -> bytes:
        """Send a request of any method, and return its result as encoded JSON.

        Raises:
            RequestFailed: the server responded with a JSON-RPC error.
            CallTimedOut: no response arrived in time.
            Disconnected: the connection to the server has ended.
        """
        return bytes(await self._connection.result_of(self._connection.request(method, params), timeout_seconds))

    async def notify(self, method: str, params: object = None) -> None:
        self._connection.notify(method, params)

    def send_raw(self, data: bytes) -> None:
        """Send raw bytes. The caller must end each message with a newline."""
        self._connection.send_raw(data)

    # --- from the server -----------------------------------------------------------------

    def _receive_notification(self, method: str, params: Raw) -> None:
        if (receive := self._notifications.get(method)) is not None:
            receive(params)
        elif not method.startswith(_MCP_NOTIFICATION):
            self._feeds.receive_event(params)

    def _receive_log(self, params: Raw) -> None:
        if self._on_log is not None:
            self._on_log(decode_lenient(_log_decoder, params))

    def _receive_loss(self) -> None:
        """Cancel all running `on_approval` callbacks, because the connection was lost. After a reconnection, the
        server sends the requests for open approvals again.
        """
        self._cancel_approvals()
        self._feeds.suspend()
        if self._on_lost is not None:
            self._on_lost()

    def _cancel_approvals(self) -> tuple[asyncio.Task[None], ...]:
        tasks = tuple(self._undecided.values())
        self._undecided.clear()
        self._answers.clear()
        for task in tasks:
            task.cancel()
        return tasks

    def _receive_end(self, error: Disconnected) -> None:
        self._feeds.receive_loss(error)

    def _receive_codex_event(self, params: Raw) -> None:
        event = decode_lenient(_codex_event_decoder, params)
        if (on_event := self._listeners.get(event.meta.request_id)) is not None:
            on_event(decode_event(event.msg))

    def _receive_cancelled(self, params: Raw) -> None:
        """Cancel the callback for an approval request that the server has cancelled, for example because another
        client has decided the approval or the turn has ended.
        """
        request_id = decode_lenient(_cancelled_decoder, params).request_id
        if (task := self._undecided.pop(request_id, None)) is not None:
            task.cancel()

    def _receive_request(self, request_id: RequestId, method: str, params: Raw) -> None:
        if method == Ping.METHOD:
            self._connection.send(response(request_id, b"{}"))
        elif request_id in self._undecided:
            pass  # a resumed stream can deliver a request twice
        elif (answer := self._answers.get(request_id)) is not None:
            self._connection.send(answer)  # the stream was resumed before the server received the response
        elif method == ElicitationParams.METHOD and self._on_approval is not None:
            try:
                elicitation = decode_lenient(_elicitation_decoder, params)
            except msgspec.DecodeError as error:
                self._connection.send(error_response(request_id, INVALID_PARAMS, str(error)))
                return
            task = asyncio.create_task(self._ask(request_id, elicitation, self._on_approval))
            self._undecided[request_id] = task
        else:
            self._connection.send(error_response(request_id, METHOD_NOT_FOUND, f"no method {method}"))

    async def _ask(self, request_id: RequestId, elicitation: ElicitationParams, on_approval: OnApproval) -> None:
        """Call `on_approval` with the approval that a request from the server describes. If the callback returns
        without a decision, the approval stays open.
        """

        async def decide(decision: Decision, reason: str | None, timeout_seconds: float | None) -> None:
            answer = ElicitationAnswer(decision=decision, reason=UNSET if reason is None else reason)
            self._decide(request_id, response(request_id, encode(answer)))

        try:
            answering = on_approval(approval_from_request(elicitation, decide))
            if inspect.isawaitable(answering):
                await answering
        except Exception:
            log.exception("the callback `on_approval` failed")
            if request_id in self._undecided:
                failure = error_response(request_id, INTERNAL_ERROR, "the client could not answer")
                self._decide(request_id, failure)

    def _decide(self, request_id: RequestId, frame: bytes) -> None:
        if self._undecided.pop(request_id, None) is None:
            raise AlreadyDecided
        self._answers[request_id] = frame
        self._connection.send(frame)
