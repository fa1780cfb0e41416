"""A `codex` or `codex-reply` call in progress, which can be awaited or cancelled."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

import msgspec

from parley.client.connection import Call, Connection, read_result
from parley.client.turn_result import Event
from parley.wire.jsonrpc import RequestId
from parley.wire.mcp import CallToolResult

__all__ = ["CodexCall", "OnEvent", "tool_result"]

OnEvent = Callable[[Event], None]

_result_decoder: Final = msgspec.json.Decoder(CallToolResult)


async def tool_result(
    connection: Connection, call: Call, timeout_seconds: float | None = None, *, keeps_waiting: bool = False
) -> CallToolResult:
    """Wait for the result of a tool call and return the result, even if the tool failed. `keeps_waiting` has the
    same meaning as in `Connection.result_of`.
    """
    result = await connection.result_of(call, timeout_seconds, keeps_waiting=keeps_waiting)
    return read_result(_result_decoder, result, call.name)


class CodexCall:
    """A `codex` or `codex-reply` call that has been sent.

    Awaiting the call returns the result of the call, even if the turn failed.

    Awaiting the call after `cancel` raises `CallCancelled`. If the turn takes longer than the timeout of the call,
    awaiting raises `CallTimedOut`, and the turn continues. The call can then be awaited again or cancelled.
    """

    def __init__(self, connection: Connection, call: Call, timeout_seconds: float | None = None) -> None:
        self._connection, self._call, self._timeout_seconds = connection, call, timeout_seconds

    @property
    def request_id(self) -> RequestId:
        return self._call.request_id

    def __await__(self) -> Generator[object, None, CallToolResult]:
        return tool_result(self._connection, self._call, self._timeout_seconds, keeps_waiting=True).__await__()

    async def cancel(self) -> None:
        """Interrupt the turn. Awaiting the call then raises `CallCancelled`. Do nothing if the result has already
        arrived.
        """
        self._connection.cancel_call(self._call)
