"""Serves clients, and shuts the server down.

`ServerCore.serve_client` serves one client until that client disconnects. The server then continues to serve the
other clients. `ServerCore.shutdown` ends all turns, responds to all requests and removes all clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from parley.common.telemetry import telemetry
from parley.config.load import Loader
from parley.errors import UnknownConversation, Unreadable
from parley.ports.availability import AvailabilityState
from parley.ports.outbox import FrameOutbox
from parley.server.access import require_conversation
from parley.server.context import LOCAL_USER, Principal, Reply, ServerContext
from parley.server.dispatch import Dispatch
from parley.server.methods import LEGACY_METHODS, MODERN_METHODS, methods, negotiate
from parley.server.modern.requests import meta_of
from parley.server.positions import Position
from parley.server.resources.subscriptions import ResourceSubscriptions
from parley.server.session import Session, StreamState
from parley.server.store_notices import send_store_notice
from parley.server.streams import Streams, StreamStart
from parley.server.toolcall import ToolCall
from parley.server.turn_waiter import TurnWaiter
from parley.wire.framing import Overlong
from parley.wire.ids import ConversationId, EventId, Seq
from parley.wire.jsonrpc import RequestId
from parley.wire.mcp import CallToolParams, InitializeParams, LogLevel
from parley.wire.notifications import StreamDisconnected

__all__ = ["ClientConnection", "ServerCore", "Transport"]

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 1.5
"""The maximum time in seconds that a shutdown waits until all turns have ended, all responses have been sent, and
clients have read the responses. This time is shorter than the two seconds that the protocol allows for the whole
shutdown.
"""
CLOSE_SECONDS: Final = 0.3
"""The maximum time, in seconds, that a shutdown waits for the store to close, in addition to `SHUTDOWN_SECONDS`.
Closing takes this long only if the disk is slow or another process holds the write lock of the store.
"""
LEAVE_SECONDS: Final = 1.0
"""The maximum time in seconds for which a client can still receive responses after it has closed its sending
side.
"""
LAST_ANSWERS_SECONDS: Final = 0.05
"""The maximum time, in seconds, that a shutdown waits for the last responses after it has closed the store.
Requests that were waiting for the store get an error at that time.
"""
MAX_SHUTDOWN_SECONDS: Final = SHUTDOWN_SECONDS + CLOSE_SECONDS + LAST_ANSWERS_SECONDS


class ClosableOutbox(FrameOutbox, Protocol):
    async def flush(self) -> None:
        """Wait until the client has read all data that was sent to it, or has stopped reading."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """A connection to one client."""

    @property
    def outbox(self) -> ClosableOutbox: ...

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        """Pass every frame to `take`. Return when the client has closed its sending side or the server has stopped
        reading.
        """
        ...


class ClientConnection:
    """The connection of one client, with its session, its streams and its open requests."""

    def __init__(
        self,
        out: ClosableOutbox,
        context: ServerContext,
        tasks: asyncio.TaskGroup,
        principal: Principal = LOCAL_USER,
        loader: Loader | None = None,
    ) -> None:
        """Create the connection.

        `out` is the outbox of the client. `tasks` runs the handlers of the client's requests. `loader` resolves
        settings for the client; the default is the loader of the server.
        """
        self.out, self._context = out, context
        self.id = f"c{next(context.client_numbers)}"
        """The name of the client in logs and traces, unique in this process."""
        self.session = Session(out, context.request_ids, loader or context.loader, principal)
        self._streams = Streams()
        self.subscriptions = ResourceSubscriptions(self.session, context)
        handlers = methods(self.session, self._streams, self.subscriptions, context)
        self._dispatch = Dispatch(
            out,
            {method: handler for method, handler in handlers.items() if method not in MODERN_METHODS},
            modern_requests={
                method: handler for method, handler in handlers.items() if method not in LEGACY_METHODS
            },
            meta_of=lambda params: meta_of(params, self.session.loader),
            context=self.session.context,
            own=self.session.requests,
            tasks=tasks,
            client_id=self.id,
        )

    def take(self, frame: bytes | Overlong, reply: Reply | None = None) -> None:
        """Handle one frame from the client. The response is sent to `reply`, by default to the outbox of the
        client.
        """
        self._dispatch.take(frame, reply)

    async def resume_call(
        self,
        request_id: RequestId,
        conversation: ConversationId,
        event_id: EventId,
        position: Position,
        reply: Reply,
    ) -> None:
        """Continue a `codex` or `codex-reply` call whose HTTP stream was lost, beginning after the messages that
        the client has received.

        `request_id` and `conversation` are the request id and the conversation of the call. `event_id` is the event
        id of its turn. `position` is the position that the client has reached. The remaining messages and the
        response are sent to `reply`.

        Raises:
            ParleyError: the conversation does not exist or cannot be read.
        """
        require_conversation(self.session.principal, conversation)
        found = await self._context.conversations.find(conversation)
        call = ToolCall(
            self._dispatch.resume(request_id, reply),
            CallToolParams(name="codex"),
            self.session,
            self._streams,
            self._context,
        )
        await TurnWaiter(call, found, skipped=position.messages).resume(Seq(position.seq), event_id)

    @property
    def streams(self) -> tuple[StreamState, ...]:
        """The states of the client's open streams."""
        return self._streams.states

    def has_stream(self, conversation: str) -> bool:
        """Return whether the client has an open stream of the given conversation."""
        return self._streams.is_open(ConversationId(conversation))

    async def restore(
        self,
        params: InitializeParams,
        *,
        log_level: LogLevel,
        streams: Iterable[StreamState],
        last_stream: int,
        resources: Iterable[str],
        has_listed_resources: bool,
    ) -> None:
        """Continue a session of an earlier server process.

        `params` contains the parameters of the client's `initialize`. `streams` contains the streams of the client.
        If the conversation of a stream no longer exists or is damaged, the stream is not opened, and the client
        gets a notice. `last_stream` is the number of the stream that was opened last. `resources` contains the URIs
        of the resources to which the client has subscribed. `has_listed_resources` is True if the client has listed
        the resources, and is therefore notified when the list changes.

        Raises:
            ParleyError: a conversation cannot be read. The session is then only partly restored.
        """
        session = self.session
        session.requests.use_unique_ids()
        negotiate(session, params)
        session.log_level, session.last_stream = log_level, last_stream
        await self.open_streams(streams)
        await self.subscriptions.restore(resources, session.principal, has_listed=has_listed_resources)

    async def open_streams(self, streams: Iterable[StreamState]) -> None:
        """Open streams that were opened by another server process. If the conversation of a stream no longer exists
        or is damaged, the stream is not opened, and the client gets a notice.

        Raises:
            ParleyError: a conversation cannot be read. Some of the streams may not be open.
        """
        session = self.session
        for stream in streams:
            try:
                require_conversation(session.principal, stream.conversation)
                conversation = await self._context.conversations.find(stream.conversation)
            except UnknownConversation as error:
                log.info("a stream of a session cannot be continued: %s", error)
                reason = StreamDisconnected.DELETED
                self._streams.note_lost(session, stream, reason, StreamDisconnected.CODES[reason])
                continue
            except Unreadable as error:
                log.info("a stream of a session cannot be continued: %s", error)
                self._streams.note_lost(session, stream, str(error), error.code)
                continue
            start = StreamStart(
                after=Seq(min(stream.after, conversation.log.durable)),
                before=None if stream.before is None else Seq(stream.before),
            )
            self._streams.open(
                session,
                conversation,
                self._dispatch.resume_answered(stream.request),
                start,
                number=stream.number,
                event_meta=stream.event_meta,
                as_log=stream.as_log,
            )

    def close_stream(self, conversation: ConversationId) -> None:
        """End the stream of the conversation without a notice, because another server process has ended it."""
        self._streams.close(conversation)

    def restart_streams(self, positions: Mapping[str, Position], *, received: Collection[bytes] = ()) -> None:
        """For each stream, repeat the messages that the client has not received.

        `positions` maps the conversations to the positions that the client has reached. `received` contains the
        frames that the client has received since it reconnected. Notices in `received` about the ends of streams
        are not repeated.
        """
        self._streams.restart(self.session, positions, received=received)
        self.session.reconnected()

    async def all_answered(self) -> None:
        """Wait until every request has its response, or was cancelled and gets no response."""
        await self._dispatch.all_answered()

    async def end_streams(self) -> None:
        """Send the remaining events of all streams, and then end the streams."""
        await self.out.flush()  # readers of slow clients continue to send in the meantime
        self._streams.shut_down()
        self._dispatch.end_held()
        await self.out.flush()

    def remove(self) -> None:
        """Close the connection of the client, and remove the streams and callbacks of the client. The turns of the
        client continue.
        """
        self.session.leave()
        self.out.close()
        self._dispatch.stop_waiting()

    def abandon(self) -> None:
        """Stop all handlers of the client's requests. The requests get no response."""
        self._dispatch.abandon()


class ServerCore:
    """Serves any number of clients at the same time."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.clients: set[ClientConnection] = set()
        self.is_shutting_down = False
        self._ends_at: float | None = None
        """The latest time at which `shutdown` returns, in seconds on the clock of the event loop; None before the
        shutdown.
        """

    @property
    def shutdown_seconds_left(self) -> float:
        """The remaining time for the shutdown, in seconds; `MAX_SHUTDOWN_SECONDS` before the shutdown begins."""
        if self._ends_at is None:
            return MAX_SHUTDOWN_SECONDS
        return max(0.0, self._ends_at - asyncio.get_running_loop().time())

    def on_availability(self, state: AvailabilityState) -> None:
        """Record that the availability of the store has changed to `state`, and notify all clients."""
        self.context.availability = state
        for client in tuple(self.clients):
            send_store_notice(client.session, state)

    async def serve_client(
        self,
        transport: Transport,
        principal: Principal = LOCAL_USER,
        *,
        loader: Loader | None = None,
        connected: Callable[[ClientConnection], None] = lambda client: None,
    ) -> None:
        """Serve a client until it disconnects or the server shuts down.

        Requests that the client sent before it disconnected are executed, and its turns continue. After the client
        has closed its sending side, it still gets the responses that are sent within `LEAVE_SECONDS`. `loader`
        resolves settings for the client; the default is the loader of the server. `connected` is called with the
        connection before the first message is read.
        """
        async with self._connected(transport, principal, loader) as client:
            connected(client)
            await transport.read(client.take)
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await client.all_answered()
                    await client.out.flush()

    async def serve_only_client(self, transport: Transport) -> None:
        """Serve one client until it closes its sending side or the server stops reading. Then shut the server down.
        The client can still read messages during the shutdown.
        """
        async with self._connected(transport, LOCAL_USER, None) as client:
            await transport.read(client.take)
            await self.shutdown()

    async def shutdown(self) -> None:
        """End all turns, respond to all requests, end all streams, and remove all clients. Return after at most
        `MAX_SHUTDOWN_SECONDS`.
        """
        self.is_shutting_down = True
        clients, conversations = tuple(self.clients), self.context.conversations
        began = asyncio.get_running_loop().time()
        self._ends_at = began + MAX_SHUTDOWN_SECONDS
        late = "shutting down without waiting for turns that did not end"
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await conversations.stop()
                late = "shutting down before all requests have a response"
                await asyncio.gather(*(client.all_answered() for client in clients))
                late = "shutting down although a client has not read all messages"
                await asyncio.gather(*(client.end_streams() for client in clients))
        except TimeoutError:
            log.warning(late)
        try:
            async with asyncio.timeout_at(began + SHUTDOWN_SECONDS + CLOSE_SECONDS):
                await conversations.close()
        except TimeoutError:
            log.warning(
                "shutting down before the store is closed: slow disk, or another process holds the write lock"
            )
        with suppress(TimeoutError):
            # Commands that waited for the store have failed by now.
            async with asyncio.timeout(LAST_ANSWERS_SECONDS):
                await asyncio.gather(*(client.all_answered() for client in clients))
                await asyncio.gather(*(client.out.flush() for client in clients))
        for client in clients:
            client.remove()
            client.abandon()

    @asynccontextmanager
    async def _connected(
        self, transport: Transport, principal: Principal, loader: Loader | None
    ) -> AsyncIterator[ClientConnection]:
        async with asyncio.TaskGroup() as tasks:
            client = ClientConnection(transport.outbox, self.context, tasks, principal, loader)
            self.clients.add(client)
            telemetry.note("client.connected", client_id=client.id, role=principal.role.label)
            try:
                yield client
            finally:
                self.clients.discard(client)
                client.remove()
                telemetry.note("client.disconnected", client_id=client.id)
