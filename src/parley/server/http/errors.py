"""The errors that the server reports with an HTTP error status and a JSON-RPC error."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar, Final

from parley.server.errors import RequestRefused
from parley.wire.http import LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID
from parley.wire.jsonrpc import INVALID_REQUEST
from parley.wire.modern import HEADER_MISMATCH

__all__ = [
    "PARSE_ERROR",
    "ArrayNotAllowed",
    "BadBody",
    "HeaderMismatch",
    "HttpRefused",
    "NotAcceptable",
    "PushRefused",
    "RequestBodyTooLarge",
    "RequestBodyUnreadable",
    "SessionMissing",
    "SessionNotRemoved",
    "SessionNotRestored",
    "SignInFailed",
    "SignInNotStored",
    "StreamEndNotSaved",
    "TooManySessions",
    "TooManySignIns",
    "Unauthorized",
    "UnknownEventId",
    "UnknownSession",
    "UnsupportedMediaType",
    "VersionMismatch",
]

PARSE_ERROR: Final = -32700


class HttpRefused(RequestRefused):
    """Raised to respond to an HTTP request with an HTTP error status and a JSON-RPC error."""

    number = INVALID_REQUEST
    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST


class UnsupportedMediaType(HttpRefused):
    """Raised when the media type of the request body is not `application/json`, or the body is compressed."""

    code, status = "unsupported_media_type", HTTPStatus.UNSUPPORTED_MEDIA_TYPE

    def __init__(self) -> None:
        super().__init__("the body must be plain application/json")


class NotAcceptable(HttpRefused):
    """Raised when the header `Accept` of a request does not allow the media type of the response."""

    code, status = "not_acceptable", HTTPStatus.NOT_ACCEPTABLE

    def __init__(self, media_type: str) -> None:
        super().__init__(f"the client must accept {media_type}")


class RequestBodyTooLarge(HttpRefused):
    """Raised when the request body is larger than the limit or than the available memory."""

    code, status = "body_too_large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class RequestBodyUnreadable(HttpRefused):
    """Raised when the request body did not arrive completely or in time."""

    code, status = "body_unreadable", HTTPStatus.REQUEST_TIMEOUT


class BadBody(HttpRefused):
    """Raised when the request body is invalid, for example because it contains no JSON-RPC message."""

    code = "bad_body"

    def __init__(self, message: str, *, number: int = INVALID_REQUEST) -> None:
        super().__init__(message)
        self.number = number


class ArrayNotAllowed(HttpRefused):
    """Raised when the request body is an array of messages, but the protocol version does not allow arrays."""

    code = "array_not_allowed"

    def __init__(self, version: str) -> None:
        super().__init__(f"arrays of messages are for clients at {version} only")


class SessionMissing(HttpRefused):
    """Raised when a request does not contain exactly one session id."""

    code = "session_missing"

    def __init__(self) -> None:
        super().__init__(f"the header {SESSION_ID} is missing; begin with `initialize`")


class UnknownSession(HttpRefused):
    """Raised when a request names a session that does not exist or belongs to another principal."""

    code, status = "unknown_session", HTTPStatus.NOT_FOUND

    def __init__(self) -> None:
        super().__init__("the session does not exist; begin with `initialize`")


class SessionNotRestored(HttpRefused):
    """Raised when a session of an earlier server process cannot be restored, because the session or one of its
    conversations cannot be read. The session remains stored, so the client can try again.
    """

    code, status = "session_not_restored", HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self, reason: Exception) -> None:
        super().__init__(f"the session cannot be restored now: {reason}; try again later")


class SessionNotRemoved(HttpRefused):
    """Raised when a session cannot be ended, because the store failed. The session continues."""

    code, status = "session_not_removed", HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self, reason: Exception) -> None:
        super().__init__(f"the session was not ended, because it cannot be removed: {reason}; try again later")


class StreamEndNotSaved(HttpRefused):
    """Raised when a client has ended a stream, but the stream cannot be removed from the stored session. The stream
    would continue after a restart of the server.
    """

    code, status = "stream_end_not_saved", HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("the stream has ended, but would continue after a restart of the server; send this again")


class Unauthorized(HttpRefused):
    """Raised when a request has no valid token. The error message does not contain the reason why the token is
    invalid.
    """

    code, status = "unauthorized", HTTPStatus.UNAUTHORIZED

    def __init__(self) -> None:
        super().__init__("the request needs a valid token in the header `Authorization: Bearer TOKEN`")


class PushRefused(HttpRefused):
    """Raised when a push subscription is invalid, or when the server cannot send push messages."""

    code = "push_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the push subscription is refused: {reason}")


class SignInFailed(HttpRefused):
    """Raised when a person cannot sign in to the web page. The error message does not contain the reason."""

    code, status = "sign_in_failed", HTTPStatus.UNAUTHORIZED

    def __init__(self) -> None:
        super().__init__("the code or the token is not valid; a code is valid once, within a minute")


class SignInNotStored(HttpRefused):
    """Raised when a sign-in cannot be stored, changed or ended, because the store failed."""

    code, status = "sign_in_not_stored", HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self, reason: Exception) -> None:
        super().__init__(f"the sign-in cannot be stored now: {reason}; try again later")


class TooManySessions(HttpRefused):
    """Raised when a session cannot begin. The server or the principal has the maximum number of sessions, and the
    principal has no idle session that could be ended.
    """

    code, status = "too_many_sessions", HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("there are too many sessions")


class TooManySignIns(HttpRefused):
    """Raised when a token was used for too many sign-ins to the web page within a short time."""

    code, status = "too_many_sign_ins", HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self) -> None:
        super().__init__("the token was used for too many sign-ins; try again in ten seconds")


class VersionMismatch(HttpRefused):
    """Raised when a request names a protocol version other than the negotiated version of its session."""

    code = "version_mismatch"

    def __init__(self) -> None:
        super().__init__(f"{PROTOCOL_VERSION} is not the version that the session negotiated")


class UnknownEventId(HttpRefused):
    """Raised when a client resumes a stream with an event id that the server did not send in this session."""

    code = "unknown_event_id"

    def __init__(self) -> None:
        super().__init__(f"{LAST_EVENT_ID} is not an id of this session")


class HeaderMismatch(HttpRefused):
    """Raised when a header that repeats a value of the request body is missing, or differs from this value."""

    code, number = "header_mismatch", HEADER_MISMATCH

    def __init__(self, detail: str) -> None:
        super().__init__(f"Header mismatch: {detail}")
