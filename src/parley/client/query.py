"""One question to an agent, without a client of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from os import PathLike
from typing import Unpack

from parley.client.approval import OnQuestion
from parley.client.client import connect
from parley.client.options import CreateOptions
from parley.client.transport import Transport
from parley.client.turn_result import Event

__all__ = ["query"]


async def query(
    prompt: str,
    *,
    cwd: str | PathLike[str] = ".",
    model: str | None = None,
    transport: Transport | None = None,
    on_question: OnQuestion | None = None,
    **options: Unpack[CreateOptions],
) -> AsyncIterator[Event]:
    """Ask one question in a new conversation and yield the events of its turn.

    Connects to a server as `connect` does, and disconnects after the turn. The arguments have the meanings that
    they have in `connect` and `Client.create`.

    Raises:
        OSError: the server cannot be started.
        ToolFailed: the conversation cannot be created.
        StreamEnded, Disconnected: the server ended before the turn.
    """
    async with connect(transport, on_question=on_question) as client:
        conversation = await client.create(cwd=cwd, model=model, **options)
        async for event in await conversation.send(prompt):
            yield event
