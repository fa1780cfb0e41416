"""Errors that the client raises."""

from __future__ import annotations

from parley.client.turn_result import TurnResult
from parley.errors import ParleyError
from parley.wire.events import TurnEndReason

__all__ = [
    "AlreadyDecided",
    "CallCancelled",
    "CallLost",
    "CallTimedOut",
    "ClientError",
    "Disconnected",
    "RequestFailed",
    "StreamEnded",
    "ToolFailed",
    "TurnFailed",
    "TurnNotFollowable",
]


class ClientError(ParleyError):
    """A call of the client failed."""


class RequestFailed(ClientError):
    """The server answered a request with a JSON-RPC error.

    `number` is the code of JSON-RPC; `code` names the error for programs, and is None if the server sends no codes.
    """

    def __init__(self, number: int, message: str, *, code: str | None = None) -> None:
        super().__init__(f"{message} ({number})")
        self.number, self.message, self.code = number, message, code


class ToolFailed(ClientError):
    """A tool returned an error; `code` names it for programs, and is None if the server sends no codes."""

    def __init__(self, tool: str, message: str, *, code: str | None = None) -> None:
        super().__init__(f"{tool}: {message or 'no reason given'}")
        self.tool, self.message, self.code = tool, message, code


class CallCancelled(ClientError):
    """This client cancelled the call, so the server sends no result."""

    def __init__(self) -> None:
        super().__init__("the call was cancelled")


class CallTimedOut(ClientError, TimeoutError):
    """A call had no result in time. The server may still complete it."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"{name}: no result after {seconds:g} s")
        self.name, self.seconds = name, seconds


class StreamEnded(ClientError):
    """A stream ended before the awaited event; `reason` is None if the server gave none.

    `code` names the reason for programs, and is None if the server sends no codes.
    """

    def __init__(self, reason: str | None, *, code: str | None = None) -> None:
        super().__init__(reason or "the stream was closed")
        self.reason, self.code = reason, code


class TurnFailed(ClientError):
    """A turn failed or was interrupted."""

    def __init__(self, message: str, result: TurnResult, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.result = message, result
        self.code = code
        """The code of the error; None if the turn was interrupted or the server sends no codes."""

    @property
    def reason(self) -> TurnEndReason:
        """Why the turn ended."""
        return self.result.reason

    @property
    def text(self) -> str:
        """The text of the agent before the turn ended."""
        return self.result.text


class TurnNotFollowable(ClientError):
    """The server does not show which turn a message belongs to."""

    def __init__(self) -> None:
        super().__init__("following a turn requires protocol version 2025-11-25")


class AlreadyDecided(ClientError):
    """An approval was decided or withdrawn before this decision."""

    def __init__(self) -> None:
        super().__init__("the approval was already decided or withdrawn")


class Disconnected(ClientError):
    """The server closed its output or exited; `exit_code` is None if it has not exited."""

    def __init__(self, exit_code: int | None) -> None:
        how = "closed its output" if exit_code is None else f"exited with {exit_code}"
        super().__init__(f"the server {how}")
        self.exit_code = exit_code


class CallLost(Disconnected):
    """The connection was lost before the result of a call, and the client connects again.

    The server may have completed the call.
    """

    def __init__(self, name: str) -> None:
        ClientError.__init__(self, f"{name}: the connection was lost before the result; it may have been completed")
        self.name, self.exit_code = name, None
