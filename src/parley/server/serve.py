"""Serve one client from its first message to an orderly end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from parley.ports.outbox import Outbox
from parley.server.context import ServerContext
from parley.server.dispatch import Dispatch
from parley.server.methods import methods
from parley.server.session import Session
from parley.wire.framing import Overlong

__all__ = ["Transport", "serve"]

log = logging.getLogger(__name__)

ENDING_SECONDS: Final = 1.5
"""How long an ending server goes on answering and sending: ample for a local pipe, and a client
that stopped reading cannot hold it up beyond the two seconds that the protocol allows."""
LETTING_GO_SECONDS: Final = 0.3
"""How long it then takes to let go of the home, where another process keeps it from doing so."""
LAST_WORDS_SECONDS: Final = 0.05
"""How long whoever waited for that may take to be told."""


class ClosableOutbox(Outbox, Protocol):
    async def flush(self) -> None:
        """Return when all was read, or nobody reads any more."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """A connection to one client."""

    @property
    def outbox(self) -> ClosableOutbox: ...

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        """Hand over every frame until the client has no more, or reading was stopped."""
        ...


async def serve(transport: Transport, host: ServerContext) -> None:
    """Serve until the client is gone or reading was stopped; then end what runs, answer, and leave."""
    out = transport.outbox
    session = Session(out, host.request_ids)
    async with asyncio.TaskGroup() as tasks:
        dispatch = Dispatch(out, methods(session, host), own=session.requests, tasks=tasks)
        await transport.read(dispatch.take)
        late = "the server ends without waiting any longer for what still runs"
        try:
            async with asyncio.timeout(ENDING_SECONDS):
                await host.conversations.stop()
                late = "the server ends without having answered everything that it was asked"
                await dispatch.all_answered()
                late = "the client did not read all that was sent"
                await out.flush()  # readers that were behind send on while it is read
                session.close()
                await out.flush()
        except TimeoutError:
            log.warning(late)
        try:
            async with asyncio.timeout(LETTING_GO_SECONDS):
                await host.conversations.close()
        except TimeoutError:
            log.warning("the server ends though another process keeps it from writing")
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await dispatch.all_answered()
                    await out.flush()
        session.gone()
        out.close()
        dispatch.abandon()
