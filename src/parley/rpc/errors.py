"""The errors that a session with an MCP server raises."""

from __future__ import annotations

from parley.common.secret_values import shown_url
from parley.errors import ParleyError

__all__ = [
    "CannotReach",
    "HttpRefused",
    "Redirected",
    "RequestRefused",
    "SessionError",
    "SessionLost",
    "TooLarge",
    "UnreadableAnswer",
    "UnsupportedVersion",
]


class SessionError(ParleyError):
    """Raised when a request to an MCP server fails."""


class RequestRefused(SessionError):
    """Raised when the server responds with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message = code, message


class UnreadableAnswer(SessionError):
    """Raised when a response is not a JSON-RPC message, or does not have the shape that the protocol requires."""

    def __init__(self) -> None:
        super().__init__("the response cannot be read")


class TooLarge(SessionError):
    """Raised when a message from the server exceeds the maximum number of bytes or of JSON values."""

    def __init__(self, limit: int, unit: str) -> None:
        super().__init__(f"the response has more than {limit} {unit}")
        self.limit, self.unit = limit, unit


class UnsupportedVersion(SessionError):
    """Raised when the server chooses a protocol version that this client does not support."""

    def __init__(self, version: str) -> None:
        super().__init__(f"Unsupported protocol version from the server: {version}")
        self.version = version


class SessionLost(SessionError):
    """Raised when the connection to the server ends before the result arrives. The server may have completed the
    request.
    """

    def __init__(self) -> None:
        super().__init__("the connection was lost")


class CannotReach(SessionLost):
    """Raised when the client cannot connect to the server. The server has not received the request."""

    def __init__(self, detail: str) -> None:
        SessionError.__init__(self, detail)
        self.detail = detail


class HttpRefused(SessionError):
    """Raised when the server responds with an unexpected HTTP status instead of a JSON-RPC message."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the server answered {status} {reason}".strip())
        self.status, self.reason = status, reason


class Redirected(SessionError):
    """Raised when the server redirects to another URL. The redirect is not followed, because another server could
    receive the token.
    """

    def __init__(self, location: str) -> None:
        super().__init__(
            f"Redirect to {shown_url(location)} not followed; "
            "use that URL as the endpoint if it is the intended server"
        )
        self.location = location
