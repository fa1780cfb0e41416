"""Serves clients, and shuts the server down.

`ServerCore.serve_client` serves one client until it leaves; the server and the other clients go on.
`ServerCore.shutdown` ends all turns, answers all requests and removes all clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from parley.config.load import Loader
from parley.ports.outbox import FrameOutbox
from parley.server.context import LOCAL_USER, Principal, Reply, ServerContext
from parley.server.dispatch import Dispatch
from parley.server.methods import methods
from parley.server.positions import Position
from parley.server.session import Session
from parley.server.streams import Streams
from parley.server.toolcall import ToolCall
from parley.server.turn_waiter import TurnWaiter
from parley.wire.framing import Overlong
from parley.wire.ids import ConversationId, EventId, Seq
from parley.wire.jsonrpc import RequestId
from parley.wire.mcp import CallToolParams

__all__ = ["ClientConnection", "ServerCore", "Transport"]

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 1.5
"""How long a shutdown waits for turns, answers and clients that read. The protocol allows two seconds in all."""
CLOSE_SECONDS: Final = 0.3
"""How much longer the shutdown waits until the home is closed: a disk may be slow, or another process may hold
the write lock.
"""
LEAVE_SECONDS: Final = 1.0
"""How long the server waits until a client that has stopped sending has its answers and has read everything."""
LAST_ANSWERS_SECONDS: Final = 0.05
"""How long the answers to requests that waited for the home may take."""


class ClosableOutbox(FrameOutbox, Protocol):
    async def flush(self) -> None:
        """Wait until everything was read, or the client does not read any more."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """A connection to one client."""

    @property
    def outbox(self) -> ClosableOutbox: ...

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        """Pass every frame to `take`; return when the client has closed its side, or reading was stopped."""
        ...


class ClientConnection:
    """One connected client."""

    def __init__(
        self,
        out: ClosableOutbox,
        context: ServerContext,
        tasks: asyncio.TaskGroup,
        principal: Principal = LOCAL_USER,
        loader: Loader | None = None,
    ) -> None:
        """Create the connection. `tasks` runs the handlers of its requests; `loader` is by default the loader of
        the server.
        """
        self.out, self._context = out, context
        self.session = Session(out, context.request_ids, loader or context.loader, principal)
        self._streams = Streams(self.session)
        self._dispatch = Dispatch(
            out,
            methods(self.session, self._streams, context),
            context=self.session.context,
            own=self.session.requests,
            tasks=tasks,
        )

    def take(self, frame: bytes | Overlong, reply: Reply | None = None) -> None:
        """Handle one frame of the client. Its answer goes to `reply`, by default to the outbox of the client."""
        self._dispatch.take(frame, reply)

    async def resume_call(
        self,
        request_id: RequestId,
        conversation: ConversationId,
        event_id: EventId,
        position: Position,
        reply: Reply,
    ) -> None:
        """Continue a `codex` call whose stream was lost, after the part that the client has received.

        Raises:
            ParleyError: the conversation does not exist or cannot be read.
        """
        found = await self._context.conversations.find(conversation)
        call = ToolCall(
            self._dispatch.resume(request_id, reply),
            CallToolParams(name="codex"),
            self.session,
            self._streams,
            self._context,
        )
        await TurnWaiter(call, found, skipped=position.messages).resume(Seq(position.seq), event_id)

    def restart_streams(self, positions: Mapping[str, Position]) -> None:
        """Send every stream again, after the part that the client has received."""
        self._streams.restart(positions)

    async def all_answered(self) -> None:
        """Wait until every request is answered or dropped."""
        await self._dispatch.all_answered()

    async def end_streams(self) -> None:
        """Send the remaining events of all streams, and then their ends."""
        await self.out.flush()  # slow readers go on sending meanwhile
        self._streams.shut_down()
        await self.out.flush()

    def remove(self) -> None:
        """Remove everything that is registered for the client; its turns go on."""
        self.session.leave()
        self.out.close()
        self._dispatch.stop_waiting()

    def abandon(self) -> None:
        """Stop all handlers of its requests."""
        self._dispatch.abandon()


class ServerCore:
    """Serves any number of clients at the same time."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self.clients: set[ClientConnection] = set()

    async def serve_client(
        self,
        transport: Transport,
        principal: Principal = LOCAL_USER,
        *,
        loader: Loader | None = None,
        connected: Callable[[ClientConnection], None] = lambda client: None,
    ) -> None:
        """Serve a client until it leaves or the server shuts down. Requests that it sent before are executed, and
        its turns go on.

        A client that only stopped sending still gets the answers that come within a second.
        """
        async with self._connected(transport, principal, loader) as client:
            connected(client)
            await transport.read(client.take)
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await client.all_answered()
                    await client.out.flush()

    async def serve_only_client(self, transport: Transport) -> None:
        """Serve a client until it leaves or reading was stopped, then shut down while it can still read."""
        async with self._connected(transport, LOCAL_USER, None) as client:
            await transport.read(client.take)
            await self.shutdown()

    async def shutdown(self) -> None:
        """End all turns, answer all requests, end all streams, and remove all clients, within two seconds."""
        clients, conversations = tuple(self.clients), self._context.conversations
        began = asyncio.get_running_loop().time()
        late = "shutting down without waiting for turns that did not end"
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await conversations.stop()
                late = "shutting down without having answered all requests"
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
                "shutting down before the home is closed: its disk is slow, or another process holds its write lock"
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_ANSWERS_SECONDS):  # commands that waited for the store have failed now
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
            client = ClientConnection(transport.outbox, self._context, tasks, principal, loader)
            self.clients.add(client)
            try:
                yield client
            finally:
                self.clients.discard(client)
                client.remove()
