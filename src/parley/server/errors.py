"""Errors that only the server raises."""

from __future__ import annotations

from parley.errors import INTERNAL_ERROR, RESOURCE_LIMIT, InvalidRequest, ParleyError, VisibleError
from parley.wire import jsonrpc
from parley.wire.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

__all__ = [
    "AlreadyInitialized",
    "BadCursor",
    "BadSessionId",
    "InternalError",
    "InvalidParams",
    "MessageNestedTooDeeply",
    "MessageTooLarge",
    "NoContent",
    "PeerRefusal",
    "PositionBeyondEnd",
    "RequestIdInUse",
    "RequestRefused",
    "ResourceLimitReached",
    "ToolNotOffered",
    "UnknownMethod",
    "UnknownTool",
    "error_code",
]


class ToolNotOffered(InvalidRequest):
    """This tool is not offered to the client."""

    code = "tool_not_offered"

    def __init__(self, tool: str, *, setting: str) -> None:
        super().__init__(f"{tool} is not offered to this client; the setting {setting} offers it")
        self.tool, self.setting = tool, setting


class UnknownTool(InvalidRequest):
    """No tool has this name."""

    code = "unknown_tool"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool '{name}'")
        self.name = name


class NoContent(InvalidRequest):
    """The message has no content items."""

    code = "no_content"

    def __init__(self) -> None:
        super().__init__("No content items provided")


class BadCursor(InvalidRequest):
    """The page cursor was not issued by this server."""

    code = "bad_cursor"

    def __init__(self, cursor: str) -> None:
        super().__init__("cursor was not issued by this server")
        self.cursor = cursor


class BadSessionId(InvalidRequest):
    """The session id is not a uuid."""

    code = "bad_session_id"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Failed to parse session_id: {session_id!r} is not a uuid")
        self.session_id = session_id


class PositionBeyondEnd(InvalidRequest):
    """The position is beyond the end of the log."""

    code = "position_beyond_end"

    def __init__(self, *, after: int, last: int) -> None:
        super().__init__(f"after is {after}, but the conversation ends at {last}")
        self.after, self.last = after, last


class RequestRefused(VisibleError):
    """A request that is answered with a JSON-RPC error, whose code is `number`."""

    number: int


class RequestIdInUse(RequestRefused):
    """The id belongs to a request that is not answered yet."""

    code, number = "request_id_in_use", INVALID_REQUEST

    def __init__(self) -> None:
        super().__init__("request id is in use")


class AlreadyInitialized(RequestRefused):
    """The client sent a second `initialize`."""

    code, number = "already_initialized", INVALID_REQUEST

    def __init__(self) -> None:
        super().__init__("initialize called more than once")


class MessageTooLarge(RequestRefused):
    """The message exceeds the size limit or the available memory."""

    code, number = "message_too_large", INVALID_REQUEST


class MessageNestedTooDeeply(RequestRefused):
    """The JSON of the message has too many levels."""

    code, number = "nested_too_deeply", INVALID_REQUEST

    def __init__(self) -> None:
        super().__init__("message is nested too deeply")


class UnknownMethod(RequestRefused):
    """No method has this name, or the client's version of the protocol does not have it."""

    code, number = "method_not_found", METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(f"method not found: {method}")


class InvalidParams(RequestRefused):
    """The parameters do not match the schema of the method."""

    code, number = "invalid_params", INVALID_PARAMS

    def __init__(self, detail: Exception) -> None:
        super().__init__(f"invalid params: {detail}")


class InternalError(RequestRefused):
    """A bug of the server."""

    code, number = INTERNAL_ERROR, jsonrpc.INTERNAL_ERROR

    def __init__(self) -> None:
        super().__init__("internal error")


class ResourceLimitReached(RequestRefused):
    """The server reached a limit of the operating system, which the text names."""

    code, number = RESOURCE_LIMIT, jsonrpc.INTERNAL_ERROR


class PeerRefusal(RequestRefused):
    """The refusal of a request of another process that failed with `error`; it has the code of that error."""

    def __init__(self, number: int, error: ParleyError, detail: str | None = None) -> None:
        super().__init__(detail or str(error))
        self.number, self.code = number, error_code(error)


def error_code(error: ParleyError) -> str:
    """Return the code of an error. An unexpected error has the code of a bug."""
    return error.code if isinstance(error, VisibleError) else INTERNAL_ERROR
