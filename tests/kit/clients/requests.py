"""Raw requests, and checks of the answers to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from parley.testing import RawParley, check_message

__all__ = [
    "ALL_TOOL_NAMES",
    "EXIT_SECONDS",
    "STOPPED",
    "TOOL_NAMES",
    "codex_pair",
    "initialize",
    "ping",
    "pong",
    "request",
    "result",
    "the_rest",
    "tool",
]

EXIT_SECONDS: Final = 90.0
"""The time limit for a server to exit, in seconds.

The server promises to exit within two seconds, but the computer may be busy.
"""

STOPPED: Final = "Turn interrupted: the server was stopped"

TOOL_NAMES: Final = [
    "codex",
    "codex-reply",
    "conversationCreate",
    "conversationSendMessage",
    "conversationStream",
    "conversationsList",
    "conversationRead",
    "conversationInterrupt",
    "conversationStatus",
    "conversationRename",
    "conversationArchive",
    "conversationDelete",
    "conversationFork",
    "approvalsList",
    "approvalAnswer",
]
"""The tools that every client sees."""

ADDED_AFTER: Final[Mapping[str, tuple[str, ...]]] = {
    "conversationRead": ("conversationMarkRead", "conversationSearch"),
    "conversationInterrupt": ("conversationContinue", "conversationCompact"),
    "conversationFork": ("queueList", "queueEdit", "queueRemove", "queueResume", "attentionList", "settingsList"),
}
"""The tools that only some clients see, each keyed by the tool that precedes it in the list."""
ALL_TOOL_NAMES: Final = [name for one in TOOL_NAMES for name in (one, *ADDED_AFTER.get(one, ()))]
"""The tools that clients at 2025-11-25 and known hosts see."""


def request(request_id: object, method: str, params: object = None) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else {**message, "params": params}


def tool(request_id: object, name: str, arguments: object = None) -> dict[str, Any]:
    params = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    return request(request_id, "tools/call", params)


def initialize(request_id: object = 0, *, version: object = "2025-06-18") -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
    return request(request_id, "initialize", params)


def result(request_id: object, value: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def ping(request_id: object) -> dict[str, Any]:
    return request(request_id, "ping")


def pong(request_id: object) -> dict[str, Any]:
    return result(request_id, {})


def codex_pair(request_id: int, event: dict[str, Any]) -> list[dict[str, Any]]:
    params = {"_meta": {"requestId": request_id}, "id": str(request_id), "msg": event}
    return [{"jsonrpc": "2.0", "method": method, "params": params} for method in ("codex/event", event["type"])]


async def the_rest(raw: RawParley) -> list[Any]:
    """Return all messages until the server exits, after checking each message."""
    messages: list[Any] = []
    try:
        while True:
            messages.append(await raw.read_message())
    except EOFError:
        for frame in raw.frames:
            check_message(frame, version="2025-06-18")
        return messages
