"""The errors that the client raises."""

from __future__ import annotations

from http import HTTPStatus

from parley.client.turn_result import TurnResult
from parley.common.secret_values import shown_url
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
    "ServerRefused",
    "ServerUnreachable",
    "StreamEnded",
    "ToolFailed",
    "TurnFailed",
    "TurnNotFollowable",
    "UnreadableResult",
]


class ClientError(ParleyError):
    """The base class of the errors that the client raises."""


class RequestFailed(ClientError):
    """Raised when the server responds to a request with a JSON-RPC error.

    `number` is the JSON-RPC error code. `code` is the stable name of the error, or None if the server sent no name.
    """

    def __init__(self, number: int, message: str, *, code: str | None = None) -> None:
        super().__init__(f"{message} ({number})")
        self.number, self.message, self.code = number, message, code


class ServerUnreachable(ClientError, ConnectionError):
    """Raised when the client cannot connect to the server at a URL."""

    def __init__(self, url: str, detail: str) -> None:
        super().__init__(f"cannot connect to {shown_url(url)}: {detail}")
        self.url, self.detail = url, detail


class ServerRefused(ClientError, ConnectionError):
    """Raised when the server at a URL responds with a redirect or with an HTTP error status."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        address = shown_url(url)
        match status:
            case HTTPStatus.UNAUTHORIZED:
                why = f"{address} requires a token, or rejected the given token (401)"
            case HTTPStatus.FORBIDDEN:
                why = f"{address} refused the host name of the URL (403); use the URL that the server prints"
            case HTTPStatus.NOT_FOUND | HTTPStatus.METHOD_NOT_ALLOWED:
                why = f"there is no MCP server at {address} ({status:d})"
            case HTTPStatus.TEMPORARY_REDIRECT:
                why = f"{address}: {reason}"
            case _:
                why = f"{address} responded with {status:d} {reason}".rstrip()
        super().__init__(why)
        self.url, self.status = url, status

    @property
    def is_final(self) -> bool:
        """True if repeating the request would result in the same error."""
        retried = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
        return self.status < HTTPStatus.INTERNAL_SERVER_ERROR and self.status not in retried


class ToolFailed(ClientError):
    """Raised when a tool returns an error. `code` is the stable name of the error, or None if the server sent no
    name.
    """

    def __init__(self, tool: str, message: str, *, code: str | None = None) -> None:
        super().__init__(f"{tool}: {message or 'no reason given'}")
        self.tool, self.message, self.code = tool, message, code


class UnreadableResult(ClientError):
    """Raised when the result of a request does not have the form that the protocol requires."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: the result of the server cannot be read: {detail}")
        self.name, self.detail = name, detail


class CallCancelled(ClientError):
    """Raised when the caller awaits a call that this client has cancelled. The server sends no result for such a
    call.
    """

    def __init__(self) -> None:
        super().__init__("the call was cancelled")


class CallTimedOut(ClientError, TimeoutError):
    """Raised when the result of a call does not arrive in time. The server may still complete the call."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"{name}: no result after {seconds:g} s")
        self.name, self.seconds = name, seconds


class StreamEnded(ClientError):
    """Raised when a stream ends before an event that the caller waits for.

    `reason` is the server's reason for ending the stream, or None if the server gave no reason. `code` is the
    stable name of the reason, or None if the server sent no name.
    """

    def __init__(self, reason: str | None, *, code: str | None = None) -> None:
        super().__init__(reason or "the stream was closed")
        self.reason, self.code = reason, code


class TurnFailed(ClientError):
    """Raised when a turn failed or was interrupted."""

    def __init__(self, message: str, result: TurnResult, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.result = message, result
        self.code = code
        """The stable name of the error; None if the turn was interrupted or the server sent no name."""

    @property
    def reason(self) -> TurnEndReason:
        """The reason why the turn did not complete."""
        return self.result.reason

    @property
    def text(self) -> str:
        """The text that the agent wrote before the turn ended."""
        return self.result.text


class TurnNotFollowable(ClientError):
    """Raised when the events of a turn cannot be found. At protocol version 2025-06-18 and earlier, the server does
    not report which turn a message belongs to.
    """

    def __init__(self) -> None:
        super().__init__("following a turn requires protocol version 2025-11-25 or later")


class AlreadyDecided(ClientError):
    """Raised when a decision arrives after the approval was decided or withdrawn."""

    def __init__(self) -> None:
        super().__init__("the approval was already decided or withdrawn")


class Disconnected(ClientError):
    """Raised when the connection to the server has ended and is not restored.

    The connection ends when the server closes its output or exits.
    """

    def __init__(self, exit_code: int | None, reason: str | None = None) -> None:
        how = "closed its output" if exit_code is None else f"exited with {exit_code}"
        super().__init__(reason or f"the server {how}")
        self.exit_code, self.reason = exit_code, reason
        """The exit code of the server (None if the server has not exited or is not a child process), and the reason
        why the connection ended (None if the reason is unknown).
        """


class CallLost(Disconnected):
    """Raised when the connection was lost before the result of a call arrived, and the client is reconnecting.

    The server may have completed the call.
    """

    def __init__(self, name: str) -> None:
        ClientError.__init__(
            self, f"{name}: the connection was lost before the result; the server may have completed the call"
        )
        self.name, self.exit_code, self.reason = name, None, None
