"""Errors that only the package `parley.server` raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from parley.common.spelling import shortened
from parley.errors import (
    INTERNAL_ERROR,
    RESOURCE_LIMIT,
    ApprovalIsSettled,
    InvalidRequest,
    ParleyError,
    VisibleError,
)
from parley.wire import jsonrpc
from parley.wire.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND
from parley.wire.modern import MISSING_CAPABILITY, MODERN_VERSION, SERVED_VERSIONS, UNSUPPORTED_VERSION
from parley.wire.peers import PeerSettlement

__all__ = [
    "AccessTooNarrow",
    "AlreadyInitialized",
    "BadCursor",
    "BadPrompt",
    "BadSessionId",
    "InternalError",
    "InvalidParams",
    "MessageNestedTooDeeply",
    "MessageTooLarge",
    "MethodFailed",
    "MissingCapability",
    "NoContent",
    "NoLogMessages",
    "PeerRefusal",
    "PositionBeyondEnd",
    "RequestIdInUse",
    "RequestRefused",
    "ResourceLimitReached",
    "RoleTooLow",
    "SessionNotSaved",
    "TaskHasEnded",
    "TaskNotPossible",
    "TooManyStreams",
    "TooManySubscriptions",
    "ToolNotOffered",
    "UnknownMethod",
    "UnknownResource",
    "UnknownTask",
    "UnknownTool",
    "UnsupportedVersion",
    "error_code",
]

MAX_SHOWN: Final = 200
"""The maximum number of characters that an error message quotes from text that the client has sent."""


class SessionNotSaved(VisibleError):
    """Raised when a stream cannot be opened, because the server cannot store the session together with the new
    stream. Neither the session nor the conversation is changed.
    """

    code = "session_not_saved"

    def __init__(self, reason: str, *, is_number_taken: bool = False) -> None:
        """Create the error. `is_number_taken` is True if another node has given the number of the stream to another
        stream of the session.
        """
        super().__init__(
            f"the stream was not opened, because the session cannot be saved: {reason}; try again later"
        )
        self.is_number_taken = is_number_taken


class TooManyStreams(VisibleError):
    """Raised when a stream cannot be opened, because the session already has the maximum number of streams."""

    code = "too_many_streams"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the session has {limit} streams; end one of them first, or begin another session")


class ToolNotOffered(InvalidRequest):
    """Raised when a client calls a tool that the server does not offer to this client, because a setting is off."""

    code = "tool_not_offered"

    def __init__(self, tool: str, *, setting: str) -> None:
        super().__init__(f"{tool} is not offered to this client; the setting {setting} offers it")
        self.tool, self.setting = tool, setting


class RoleTooLow(InvalidRequest):
    """Raised when the role of the principal does not allow the request."""

    code = "role_too_low"

    def __init__(self, needed: str, *, name: str, role: str) -> None:
        super().__init__(f"this needs the role {needed}; {name} has the role {role}")


class TooManySubscriptions(InvalidRequest):
    """Raised when the client or its principal has reached the maximum number of subscriptions."""

    code = "too_many_subscriptions"

    def __init__(self, limit: int, *, of_principal: bool = False) -> None:
        """Create the error. If `of_principal` is True, `limit` is the maximum number for all clients of the
        principal together; otherwise, it is the maximum number for one client.
        """
        super().__init__(
            f"all clients of one principal together may subscribe to {limit} resources"
            if of_principal
            else f"a client may subscribe to {limit} resources"
        )


class AccessTooNarrow(InvalidRequest):
    """Raised when a principal that is bound to one conversation sends a request that concerns other conversations
    or creates a conversation.
    """

    code = "access_too_narrow"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has access to one conversation only, and cannot create others")
        self.name = name


class UnknownTask(InvalidRequest):
    """Raised when a request names a task that does not exist, or a task whose conversation the principal is not
    allowed to see.
    """

    code = "unknown_task"

    def __init__(self, task_id: str) -> None:
        super().__init__("Task not found")
        self.task_id = task_id


class TaskHasEnded(InvalidRequest):
    """Raised when a client requests the cancellation of a task that has already ended."""

    code = "task_has_ended"

    def __init__(self, status: str) -> None:
        super().__init__(f"Cannot cancel task: it is {status}")
        self.status = status


class UnknownTool(InvalidRequest):
    """Raised when a client calls a tool that does not exist, or that exists only for other clients."""

    code = "unknown_tool"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool '{shortened(name)}'")
        self.name = name


class NoContent(InvalidRequest):
    """Raised when a message has no content items."""

    code = "no_content"

    def __init__(self) -> None:
        super().__init__("No content items provided")


class BadCursor(InvalidRequest):
    """Raised when a page cursor is not valid for the requested list."""

    code = "bad_cursor"

    def __init__(self, cursor: str) -> None:
        super().__init__("cursor was not issued by this server")
        self.cursor = cursor


class BadPrompt(InvalidRequest):
    """Raised when a request names a prompt that does not exist, or when the arguments of the prompt are invalid."""

    code = "bad_prompt"


class BadSessionId(InvalidRequest):
    """Raised when the argument `session_id` of `codex-reply` is not a UUID."""

    code = "bad_session_id"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Failed to parse session_id: {shortened(session_id)!r} is not a uuid")


class NoLogMessages(InvalidRequest):
    """Raised when `conversationStream` is called with `as: "log"` at a protocol version without log messages."""

    code = "no_log_messages"

    def __init__(self) -> None:
        super().__init__(
            f'`as: "log"` does not exist at {MODERN_VERSION}; read the notifications of the call, or connect with '
            "`initialize` at 2025-11-25"
        )


class PositionBeyondEnd(InvalidRequest):
    """Raised when a position in the arguments of a tool is beyond the end of the conversation."""

    code = "position_beyond_end"

    def __init__(self, *, position: int, last: int, argument: str = "after") -> None:
        super().__init__(f"{argument} is {position}, but the conversation ends at {last}")
        self.position, self.last = position, last


class RequestRefused(VisibleError):
    """Raised by a handler to respond to a request with a JSON-RPC error. `number` is the numeric code of this
    error.
    """

    number: int
    modern_number: int | None = None
    """The numeric code of the error at protocol version 2026-07-28; None if `number` is used at all versions."""
    details: Mapping[str, object] | None = None
    """The members that are added to the `data` of the JSON-RPC error; None if no members are added."""


class RequestIdInUse(RequestRefused):
    """Raised when the client sends a request with the id of an earlier request that is still open."""

    code, number = "request_id_in_use", INVALID_REQUEST

    def __init__(self) -> None:
        super().__init__("request id is in use")


class AlreadyInitialized(RequestRefused):
    """Raised when the client sends a second `initialize`."""

    code, number = "already_initialized", INVALID_REQUEST

    def __init__(self) -> None:
        super().__init__("initialize called more than once")


class MessageTooLarge(RequestRefused):
    """Raised when a message is larger than the size limit or than the available memory."""

    code, number = "message_too_large", INVALID_REQUEST


class MessageNestedTooDeeply(RequestRefused):
    """Raised when the JSON of a message has too many levels."""

    code, number = "nested_too_deeply", INVALID_REQUEST

    def __init__(self) -> None:
        super().__init__("message is nested too deeply")


class UnknownMethod(RequestRefused):
    """Raised when the method of a request does not exist at the client's protocol version."""

    code, number = "method_not_found", METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(f"method not found: {shortened(method)}")


class InvalidParams(RequestRefused):
    """Raised when the parameters of a request do not match the schema of the method."""

    code, number = "invalid_params", INVALID_PARAMS

    def __init__(self, detail: Exception | str) -> None:
        super().__init__(f"invalid params: {shortened(str(detail), MAX_SHOWN)}")


class TaskNotPossible(RequestRefused):
    """Raised when a client requests that a call runs as a task, but the tool cannot run as a task."""

    code, number = "task_not_possible", METHOD_NOT_FOUND

    def __init__(self, tool: str) -> None:
        super().__init__(f"{tool} cannot be called as a task")
        self.tool = tool


class UnknownResource(RequestRefused):
    """Raised when a request contains the URI of a resource that does not exist, or that the principal is not
    allowed to see.
    """

    code, number, modern_number = "unknown_resource", RESOURCE_NOT_FOUND, INVALID_PARAMS

    def __init__(self, uri: str) -> None:
        shown = shortened(uri, MAX_SHOWN)
        super().__init__(f"Resource not found: {shown}")
        self.uri, self.details = uri, {"uri": shown}


class MethodFailed(RequestRefused):
    """Raised when a method other than `tools/call` failed with `error`.

    The JSON-RPC error contains the message and the code of `error`.
    """

    def __init__(self, error: ParleyError) -> None:
        super().__init__(str(error))
        self.code = error_code(error)
        if isinstance(error, RoleTooLow):
            self.number = INVALID_REQUEST
        else:
            self.number = INVALID_PARAMS if isinstance(error, InvalidRequest) else jsonrpc.INTERNAL_ERROR


class UnsupportedVersion(RequestRefused):
    """Raised when a request names a protocol version that the server does not support for this request."""

    code, number = "unsupported_version", UNSUPPORTED_VERSION

    def __init__(self, version: str, *, supported: Sequence[str] = SERVED_VERSIONS) -> None:
        super().__init__("Unsupported protocol version")
        self.details = {"supported": supported, "requested": shortened(version)}


class MissingCapability(RequestRefused):
    """Raised when a request needs a client capability, but the `_meta` of the request does not declare this
    capability.
    """

    code, number = "missing_capability", MISSING_CAPABILITY

    def __init__(self, *path: str) -> None:
        """Create the error. `path` contains the names of the nested members that declare the capability, the
        outermost first.
        """
        super().__init__(f"the client must declare the capability {'.'.join(path)} in this request")
        required: dict[str, object] = {}
        for name in reversed(path):
            required = {name: required}
        self.details = {"requiredCapabilities": required}


class InternalError(RequestRefused):
    """Raised when a request failed because of a bug in the server."""

    code, number = INTERNAL_ERROR, jsonrpc.INTERNAL_ERROR

    def __init__(self) -> None:
        super().__init__("internal error")


class ResourceLimitReached(RequestRefused):
    """Raised when a request failed because the server has reached a limit of the operating system. The error
    message names this limit.
    """

    code, number = RESOURCE_LIMIT, jsonrpc.INTERNAL_ERROR


class PeerRefusal(RequestRefused):
    """Raised when a request from another process failed with `error`. The response contains the code of `error`."""

    def __init__(self, number: int, error: ParleyError, detail: str | None = None) -> None:
        super().__init__(detail or str(error))
        self.number, self.code = number, error_code(error)
        if isinstance(error, ApprovalIsSettled):
            facts = PeerSettlement.__struct_fields__
            self.details = {name: getattr(error, name) for name in facts}


def error_code(error: ParleyError) -> str:
    """Return the error code that clients get for `error`. The code is `internal_error` if `error` is not a
    `VisibleError`.
    """
    return error.code if isinstance(error, VisibleError) else INTERNAL_ERROR
