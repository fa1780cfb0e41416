"""What can go wrong for a client.

ClientError
├── RequestFailed   the server answered a request with a JSON-RPC error
├── ToolFailed      a tool answered that it failed
├── StreamEnded     the server ended a stream while something of it was awaited
└── Disconnected    the server is gone; nothing further will come
"""

from __future__ import annotations

from parley.errors import ParleyError

__all__ = ["ClientError", "Disconnected", "RequestFailed", "StreamEnded", "ToolFailed"]


class ClientError(ParleyError):
    """A call of the client did not do what it was asked to do."""


class RequestFailed(ClientError):
    """The server answered a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message = code, message


class ToolFailed(ClientError):
    """A tool answered that it failed, and why."""

    def __init__(self, tool: str, message: str) -> None:
        super().__init__(f"{tool}: {message or 'no reason given'}")
        self.tool, self.message = tool, message


class StreamEnded(ClientError):
    """A stream ended before what was awaited from it; `reason` is the server's word, if it gave one."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason or "the stream was closed")
        self.reason = reason


class Disconnected(ClientError):
    """The server closed its output or exited; `exit_code` is set if it has exited."""

    def __init__(self, exit_code: int | None) -> None:
        how = "closed its output" if exit_code is None else f"exited with {exit_code}"
        super().__init__(f"the server {how}")
        self.exit_code = exit_code
