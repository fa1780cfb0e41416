"""Runs the model's calls to tools of tool servers, and appends the events of these calls to the log.

`pool.py` manages the tool servers and their connections.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import msgspec

from parley.conversation.records import CallItem
from parley.ports.model import ToolSpec
from parley.ports.tools import ToolContext
from parley.tools.errors import ToolServerFailed
from parley.tools.results import as_duration, internal_error
from parley.tools.servers.pool import Lease, RemoteTool
from parley.tools.servers.progress import progress_text, throttled_progress
from parley.wire.events import BackgroundEvent, Invocation, McpToolCallBegin, McpToolCallEnd, ToolCallOutcome
from parley.wire.jsonrpc import NestedTooDeeply, decode_lenient

__all__ = ["ServerTools"]

log: Final = logging.getLogger(__name__)

MAX_OUTPUT_BYTES: Final = 1024 * 1024
"""The maximum size, in bytes, of a result that is passed to the model. A larger result would not fit into the
context window of most models.
"""

MAX_SHOWN_BYTES: Final = 4 * 1024 * 1024
"""The maximum size, in bytes, of a result in an event."""

MAX_DEPTH: Final = 100
"""The maximum nesting depth of arguments and results. Useful values are not nested this deeply, and every encoder
accepts this depth.
"""

_arguments: Final[msgspec.json.Decoder[dict[str, Any] | None]] = msgspec.json.Decoder(dict[str, Any] | None)
_encode: Final = msgspec.json.Encoder(order="sorted").encode
"""A function that encodes a result as compact JSON with sorted keys. The model's input therefore does not depend on
the order of the keys that a server sends.
"""


class ServerTools:
    """The tools of tool servers that one turn can call. The method `run` calls a tool."""

    def __init__(self, context: ToolContext, lease: Lease) -> None:
        self._transcript, self._lease = context.transcript, lease

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._lease.specs()

    def handles(self, name: str) -> bool:
        return self._lease.find(name) is not None

    async def run(self, call: CallItem) -> str:
        """Run a tool call and return its output for the model. If the call fails, the output is the error message.
        If the call is cancelled, the tool server is notified.
        """
        tool = self._lease.find(call.name)
        if tool is None:
            return f"unsupported call: {call.name}"
        try:
            arguments = _read_arguments(call.arguments)
        except msgspec.DecodeError as error:
            return f"err: {error}"
        invocation = Invocation(server=tool.server_name, tool=tool.name, arguments=arguments)
        await self._transcript.append(McpToolCallBegin(call_id=call.call_id, invocation=invocation))
        began = time.monotonic()
        try:
            result = await self._result(tool, arguments)
            text, outcome = _model_text(result), ToolCallOutcome(ok=_event_result(result))
        except ToolServerFailed as error:
            text = str(error)
            outcome = ToolCallOutcome(err=text)
        except Exception as bug:  # the error is a bug in Parley; the begin event needs an end event
            log.exception("a call of %s failed", call.name)
            text = internal_error(bug)
            outcome = ToolCallOutcome(err=text)
        ended = McpToolCallEnd(
            call_id=call.call_id,
            invocation=invocation,
            duration=as_duration(time.monotonic() - began),
            result=outcome,
        )
        await self._transcript.append(ended)
        return text

    async def _result(self, tool: RemoteTool, arguments: dict[str, Any] | None) -> dict[str, Any]:
        async with throttled_progress(self._report) as put:
            result = await tool.call(
                arguments,
                progress=lambda done, total, message: put(
                    progress_text(tool.server_name, tool.name, done, total, message)
                ),
            )
        if _is_too_deep(result):
            raise ToolServerFailed(tool.server_name, tool.name, "its response is nested too deeply")
        return result

    async def _report(self, text: str) -> None:
        await self._transcript.append(BackgroundEvent(message=text))


def _read_arguments(arguments: str) -> dict[str, Any] | None:
    text = arguments.strip()
    if not text:
        return None
    read = decode_lenient(_arguments, text.encode("utf-8", "replace"))
    if _is_too_deep(read):
        raise NestedTooDeeply
    return read


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _model_text(result: dict[str, Any]) -> str:
    encoded = _encode(result["content"])
    if len(encoded) <= MAX_OUTPUT_BYTES:
        return encoded.decode()
    left_out = len(encoded) - MAX_OUTPUT_BYTES
    kept = encoded[:MAX_OUTPUT_BYTES].decode("utf-8", "ignore")
    return f"{kept}\n[The result is too long: {left_out} of {len(encoded)} bytes are left out.]"


def _event_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool call for the event that reports the end of the call. If the result exceeds
    `MAX_SHOWN_BYTES`, return a note instead, because the event is stored and sent to every client.
    """
    size = len(_encode(result))
    if size <= MAX_SHOWN_BYTES:
        return result
    text = f"The result is too long to be shown: {size} bytes, of {MAX_SHOWN_BYTES} at most."
    flags = {"isError": result["isError"]} if "isError" in result else {}
    return {"content": [{"type": "text", "text": text}], **flags}
