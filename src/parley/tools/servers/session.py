"""Lists the tools of a tool server, and calls them. The server is not trusted, so every response is checked. A
`Session` carries the messages.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from parley.ports.model import ToolSpec
from parley.rpc.errors import RequestRefused, SessionError, UnreadableAnswer
from parley.rpc.modern import HeaderNames, header_names
from parley.rpc.session import OnProgress, Session
from parley.tools.errors import CallFailed
from parley.tools.servers.failures import call_failure, one_line
from parley.tools.servers.tool_list import MAX_TOOLS, ToolList
from parley.wire.jsonrpc import METHOD_NOT_FOUND
from parley.wire.mcp import CallToolParams, ListToolsResult

__all__ = ["ToolSession"]

log: Final = logging.getLogger(__name__)

MAX_PAGES: Final = 100
"""The maximum number of pages of a tool list that are read."""

RESULT_KEYS: Final = ("content", "structuredContent", "isError")


class ToolSession:
    """Lists and calls the tools of a tool server in one session."""

    def __init__(self, rpc: Session, name: str) -> None:
        self._rpc, self._name = rpc, name
        self._complaint = ""
        self._headers: dict[str, HeaderNames] = {}
        """For each tool, the arguments that are also sent in HTTP headers, with the names of these headers."""

    async def tools(self) -> tuple[ToolSpec, ...]:
        """Request the list of the server's tools, and return the tools under the server's own names. The result is
        empty if the server does not support the request.

        Raises:
            SessionError: the connection was lost, or the server returned an invalid response or an error other than
                `METHOD_NOT_FOUND`.
        """
        tool_list = ToolList()
        self._headers.clear()
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            try:
                page = await self._rpc.request(ListToolsResult.METHOD, params)
            except RequestRefused as refused:
                if refused.code == METHOD_NOT_FOUND:
                    return ()
                raise
            tools, cursor = page.get("tools"), page.get("nextCursor")
            if not isinstance(tools, list):
                raise UnreadableAnswer
            tool_list.add(tools)
            self._note_headers(tools)
            if not isinstance(cursor, str) or tool_list.is_full:
                break
            params = {"cursor": cursor}
        # the message is logged once, even if the list changes often
        if tool_list.complaint not in ("", self._complaint):
            self._complaint = tool_list.complaint
            log.warning("tool server %s: %s", self._name, self._complaint)
        return tuple(tool_list.tools)

    async def call(self, tool: str, arguments: dict[str, Any] | None, report: OnProgress) -> dict[str, Any]:
        """Call a tool and return its result: `content`, and `structuredContent` and `isError` if the server
        returned them. If the tool call is cancelled, the server gets a cancellation. `report` is called with each
        progress report.

        Raises:
            CallFailed: the connection was lost, or the server did not return a valid result.
        """
        params = {"name": tool} if arguments is None else {"name": tool, "arguments": arguments}
        try:
            result = await self._rpc.request(
                CallToolParams.METHOD, params, on_progress=report, header_names=self._headers.get(tool, {})
            )
        except RequestRefused as refused:
            log.info("call of %s: error %d: %s", tool, refused.code, one_line(refused.message))
            raise CallFailed(None) from None
        except SessionError as error:
            raise CallFailed(call_failure(error)) from None
        if not _is_tool_result(result):
            raise CallFailed(call_failure(UnreadableAnswer()))
        if not isinstance(result.get("isError", False), bool):
            del result["isError"]
        return {key: result[key] for key in RESULT_KEYS if key in result}

    def _note_headers(self, tools: list[Any]) -> None:
        for tool in tools[:MAX_TOOLS]:
            match tool:
                case {"name": str(name), "inputSchema": dict(schema)} if names := header_names(schema):
                    self._headers[name] = names


def _is_tool_result(result: dict[str, Any]) -> bool:
    content, structured = result.get("content"), result.get("structuredContent", {})
    if not isinstance(content, list) or not isinstance(structured, dict):
        return False
    return all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content)
