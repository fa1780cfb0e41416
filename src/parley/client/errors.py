"""Errors that the client raises."""

from __future__ import annotations

from parley.errors import ParleyError

__all__ = [
    "CallCancelled",
    "ClientError",
    "Disconnected",
    "RequestFailed",
    "StreamEnded",
    "ToolFailed",
    "TurnFailed",
]


class ClientError(ParleyError):
    """A call of the client failed."""


class RequestFailed(ClientError):
    """The server answered a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message = code, message


class ToolFailed(ClientError):
    """A tool returned an error."""

    def __init__(self, tool: str, message: str) -> None:
        super().__init__(f"{tool}: {message or 'no reason given'}")
        self.tool, self.message = tool, message


class CallCancelled(ClientError):
    """This client cancelled the call, so the server sends no result."""

    def __init__(self) -> None:
        super().__init__("the call was cancelled")


class StreamEnded(ClientError):
    """A stream ended before the awaited event; `reason` is None if the server gave none."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason or "the stream was closed")
        self.reason = reason


class TurnFailed(ClientError):
    """A turn ended with an error; `text` is what the agent said before it."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.message, self.text = message, text


class Disconnected(ClientError):
    """The server closed its output or exited; `exit_code` is None if it has not exited."""

    def __init__(self, exit_code: int | None) -> None:
        how = "closed its output" if exit_code is None else f"exited with {exit_code}"
        super().__init__(f"the server {how}")
        self.exit_code = exit_code
