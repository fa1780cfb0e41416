"""Asks an agent a single question. No `Client` is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from os import PathLike
from typing import Unpack

from parley.client.approval import OnApproval
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
    on_approval: OnApproval | None = None,
    timeout_seconds: float | None = None,
    **options: Unpack[CreateOptions],
) -> AsyncIterator[Event]:
    """Ask one question in a new conversation and yield the events of its turn.

    If the turn has failed, raise its error after the last event.

    The function connects to a server as `connect` does, and disconnects after the turn. The arguments have the same
    meaning as in `connect` and `Client.create`.

    Raises:
        OSError: the server cannot be started or reached.
        CallTimedOut: a call got no result within `timeout_seconds`. The turn itself may take longer.
        ToolFailed: the conversation cannot be created.
        TurnFailed: the turn failed or was interrupted. All its events have been yielded.
        StreamEnded, Disconnected: the stream or the connection ended before the turn ended.
    """
    async with connect(transport, on_approval=on_approval, timeout_seconds=timeout_seconds) as client:
        conversation = await client.create(cwd=cwd, model=model, **options)
        turn = await conversation.send(prompt)
        async for event in turn:
            yield event
        await turn.result()
