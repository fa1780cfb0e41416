"""The part of the Model Context Protocol that Parley speaks."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.jsonrpc import RequestId

__all__ = [
    "FULL_CAPABILITIES",
    "FULL_VERSION",
    "KNOWN_VERSIONS",
    "PLAIN_CAPABILITIES",
    "PLAIN_VERSION",
    "CallToolParams",
    "CallToolResult",
    "Cancelled",
    "ClientCapabilities",
    "ElicitationCapability",
    "Implementation",
    "InitializeParams",
    "InitializeResult",
    "Initialized",
    "ListToolsResult",
    "LogLevel",
    "LogMessage",
    "LoggingCapability",
    "Ping",
    "Progress",
    "RequestMeta",
    "ServerCapabilities",
    "SetLevelParams",
    "TextContent",
    "ToolAnnotations",
    "ToolDefinition",
    "ToolsCapability",
    "text_result",
    "typed_result",
]

FULL_VERSION: Final = "2025-11-25"
"""Clients at this version see Parley's additions."""

PLAIN_VERSION: Final = "2025-06-18"
"""Clients at this version or an older one, and clients before `initialize`, see the plain shapes."""

KNOWN_VERSIONS: Final = (FULL_VERSION, PLAIN_VERSION, "2025-03-26", "2024-11-05")


class Implementation(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    title: str | UnsetType | None = UNSET


class ElicitationCapability(Struct, frozen=True, kw_only=True):
    """How a client can be asked. An empty object and `form` both mean that it accepts forms."""

    form: dict[str, Any] | UnsetType | None = UNSET
    url: dict[str, Any] | UnsetType | None = UNSET


class ClientCapabilities(Struct, frozen=True, kw_only=True):
    elicitation: ElicitationCapability | UnsetType | None = UNSET

    @property
    def can_be_asked(self) -> bool:
        """True if the client accepts forms. A client that names only other ways does not."""
        match self.elicitation:
            case ElicitationCapability(form=form, url=url):
                return isinstance(form, dict) or not isinstance(url, dict)
            case _:
                return False


class InitializeParams(Struct, frozen=True, kw_only=True, rename="camel"):
    METHOD: ClassVar[str] = "initialize"

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class ToolsCapability(Struct, frozen=True, kw_only=True, rename="camel"):
    list_changed: bool | UnsetType = UNSET


class LoggingCapability(Struct, frozen=True, kw_only=True):
    pass


class ServerCapabilities(Struct, frozen=True, kw_only=True):
    tools: ToolsCapability = ToolsCapability()
    logging: LoggingCapability | UnsetType = UNSET


FULL_CAPABILITIES: Final = ServerCapabilities(logging=LoggingCapability())
"""The capabilities for clients at 2025-11-25. The list of tools never changes, so `listChanged` is not
announced.
"""

PLAIN_CAPABILITIES: Final = ServerCapabilities(tools=ToolsCapability(list_changed=True))
"""The capabilities for clients at 2025-06-18 and older, as Codex announced them."""


class InitializeResult(Struct, frozen=True, kw_only=True, rename="camel"):
    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | UnsetType = UNSET


class Initialized(Struct, frozen=True):
    METHOD: ClassVar[str] = "notifications/initialized"


class Ping(Struct, frozen=True):
    METHOD: ClassVar[str] = "ping"


LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""The levels of log messages, from the least severe to the most severe."""


class SetLevelParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "logging/setLevel"

    level: LogLevel


class LogMessage(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "notifications/message"

    level: LogLevel
    logger: str | UnsetType = UNSET
    data: Any


class ToolAnnotations(Struct, frozen=True, kw_only=True, rename="camel"):
    """Hints for the decision whether a tool may be called."""

    title: str | UnsetType = UNSET
    read_only_hint: bool | UnsetType = UNSET
    destructive_hint: bool | UnsetType = UNSET
    idempotent_hint: bool | UnsetType = UNSET
    open_world_hint: bool | UnsetType = UNSET


class ToolDefinition(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    title: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | UnsetType = UNSET
    annotations: ToolAnnotations | UnsetType = UNSET


class ListToolsResult(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "tools/list"

    tools: tuple[ToolDefinition, ...]


class RequestMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    progress_token: RequestId | UnsetType | None = UNSET


class CallToolParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "tools/call"

    name: str
    arguments: Raw | UnsetType = UNSET
    meta: RequestMeta | UnsetType | None = msgspec.field(default=UNSET, name="_meta")


class TextContent(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class CallToolResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a tool. Clients of the original server read `error` after a failed turn."""

    error: str | UnsetType = UNSET
    content: tuple[TextContent, ...]
    is_error: bool | UnsetType = UNSET
    structured_content: Any | UnsetType = UNSET


def text_result(text: str, *, is_error: Literal[True] | UnsetType = UNSET) -> CallToolResult:
    """Return a result that is a text."""
    return CallToolResult(content=(TextContent(text=text),), is_error=is_error)


LARGE_RESULT_BYTES: Final = 1024 * 1024


def typed_result(value: Struct, *, is_error: bool = False) -> CallToolResult:
    """Return a result that is a value: as JSON text, and as structured content."""
    encoded = msgspec.json.encode(value)
    text: Any = encoded.decode() if len(encoded) < LARGE_RESULT_BYTES else Raw(_as_json_string(encoded))
    return CallToolResult(content=(TextContent(text=text),), is_error=is_error, structured_content=Raw(encoded))


def _as_json_string(encoded: bytes) -> bytes:
    """Encode JSON as a JSON string without a Python string, which may take four bytes for each character."""
    return b'"%b"' % encoded.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


class Cancelled(Struct, frozen=True, kw_only=True, rename="camel"):
    METHOD: ClassVar[str] = "notifications/cancelled"

    request_id: RequestId
    reason: Any | UnsetType = UNSET


class Progress(Struct, frozen=True, kw_only=True, rename="camel"):
    METHOD: ClassVar[str] = "notifications/progress"

    progress_token: RequestId
    progress: float
    message: str | UnsetType = UNSET
