"""A `codex` or `codex-reply` call that runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

import msgspec

from parley.client.connection import Call, Connection
from parley.client.stream import Event
from parley.wire.jsonrpc import RequestId, decode_lenient
from parley.wire.mcp import CallToolResult

__all__ = ["OnEvent", "Running", "tool_result"]

OnEvent = Callable[[Event], None]

_results: Final = msgspec.json.Decoder(CallToolResult)


async def tool_result(call: Call) -> CallToolResult:
    """What the tool answered, well or badly."""
    return decode_lenient(_results, await call.result)


class Running:
    """The call was sent; awaiting this gives its result, also that of a turn that failed.

    Raises `CallCancelled` after `cancel`.
    """

    def __init__(self, connection: Connection, call: Call) -> None:
        self._connection, self._call = connection, call

    @property
    def request_id(self) -> RequestId:
        return self._call.request_id

    def __await__(self) -> Generator[object, None, CallToolResult]:
        return tool_result(self._call).__await__()

    async def cancel(self) -> None:
        """Interrupt the turn; awaiting the call then raises `CallCancelled`. Does nothing after the result."""
        self._connection.cancel_call(self._call)
