"""The messages and constants of the Model Context Protocol that Parley supports."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.jsonrpc import RequestId
from parley.wire.tasks import ResultMeta

__all__ = [
    "FULL_CAPABILITIES",
    "FULL_VERSION",
    "KNOWN_VERSIONS",
    "MODERN_CAPABILITIES",
    "PLAIN_CAPABILITIES",
    "PLAIN_VERSION",
    "SERVER_NAME",
    "SERVER_TITLE",
    "TASKS_EXTENSION",
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
    "typed_result",
]

FULL_VERSION: Final = "2025-11-25"
"""The oldest protocol version whose clients see Parley's additions."""

PLAIN_VERSION: Final = "2025-06-18"
"""The newest protocol version whose clients do not see Parley's additions. Clients that have not sent `initialize`
do not see the additions either.
"""

SERVER_NAME: Final = "parley"
SERVER_TITLE: Final = "Parley"

KNOWN_VERSIONS: Final = (FULL_VERSION, PLAIN_VERSION, "2025-03-26", "2024-11-05")


class Implementation(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    title: str | UnsetType | None = UNSET


class ElicitationCapability(Struct, frozen=True, kw_only=True):
    """The kinds of elicitation that a client accepts.

    An empty object and an object with `form` both mean that the client accepts forms.
    """

    form: dict[str, Any] | UnsetType | None = UNSET
    url: dict[str, Any] | UnsetType | None = UNSET


class ClientCapabilities(Struct, frozen=True, kw_only=True):
    elicitation: ElicitationCapability | UnsetType | None = UNSET

    @property
    def can_be_asked(self) -> bool:
        """True if the client accepts elicitation with forms.

        The value is False if the client declares other modes of elicitation, but not `form`.
        """
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


class ResourcesCapability(Struct, frozen=True, kw_only=True, rename="camel"):
    subscribe: bool | UnsetType = UNSET
    list_changed: bool | UnsetType = UNSET


class EmptyCapability(Struct, frozen=True, kw_only=True):
    """A capability that has no options."""


class TaskToolsCapability(Struct, frozen=True, kw_only=True):
    call: EmptyCapability = EmptyCapability()


class TaskRequestsCapability(Struct, frozen=True, kw_only=True):
    tools: TaskToolsCapability = TaskToolsCapability()


class TasksCapability(Struct, frozen=True, kw_only=True):
    list: EmptyCapability = EmptyCapability()
    cancel: EmptyCapability = EmptyCapability()
    requests: TaskRequestsCapability = TaskRequestsCapability()


class ServerCapabilities(Struct, frozen=True, kw_only=True):
    tools: ToolsCapability = ToolsCapability()
    logging: LoggingCapability | UnsetType = UNSET
    resources: ResourcesCapability | UnsetType = UNSET
    prompts: EmptyCapability | UnsetType = UNSET
    completions: EmptyCapability | UnsetType = UNSET
    tasks: TasksCapability | UnsetType = UNSET
    extensions: dict[str, EmptyCapability] | UnsetType = UNSET


FULL_CAPABILITIES: Final = ServerCapabilities(
    logging=LoggingCapability(),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    prompts=EmptyCapability(),
    completions=EmptyCapability(),
    tasks=TasksCapability(),
)
"""The server's capabilities for clients at protocol version 2025-11-25. `listChanged` is not announced for tools,
because the list of tools never changes.
"""

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"

MODERN_CAPABILITIES: Final = msgspec.structs.replace(
    FULL_CAPABILITIES, logging=UNSET, tasks=UNSET, extensions={TASKS_EXTENSION: EmptyCapability()}
)
"""The server's capabilities for clients at protocol version 2026-07-28. This version has no log messages, and its
tasks are an extension.
"""

PLAIN_CAPABILITIES: Final = ServerCapabilities(tools=ToolsCapability(list_changed=True))
"""The server's capabilities for clients at protocol version 2025-06-18 and older. The MCP server of Codex announces
the same capabilities.
"""


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
"""The levels of log messages; the least severe level is first."""


class SetLevelParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "logging/setLevel"

    level: LogLevel


class LogMessage(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "notifications/message"

    level: LogLevel
    logger: str | UnsetType = UNSET
    data: Any


class ToolAnnotations(Struct, frozen=True, kw_only=True, rename="camel"):
    """Hints that help a client to decide whether to allow calls to a tool."""

    title: str | UnsetType = UNSET
    read_only_hint: bool | UnsetType = UNSET
    destructive_hint: bool | UnsetType = UNSET
    idempotent_hint: bool | UnsetType = UNSET
    open_world_hint: bool | UnsetType = UNSET


class ToolExecution(Struct, frozen=True, kw_only=True, rename="camel"):
    task_support: Literal["optional"] = "optional"


class ToolDefinition(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    title: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | UnsetType = UNSET
    annotations: ToolAnnotations | UnsetType = UNSET
    execution: ToolExecution | UnsetType = UNSET


class ListToolsResult(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "tools/list"

    tools: tuple[ToolDefinition, ...]


class RequestMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    progress_token: RequestId | UnsetType | None = UNSET


class TaskRequest(Struct, frozen=True, kw_only=True):
    """The member `task` of a tool call. It requests that the tool call runs as a task."""

    ttl: int | UnsetType | None = UNSET
    """The time for which the client needs the task, in milliseconds. The value has no effect, because Parley keeps
    a task as long as its conversation.
    """


class CallToolParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "tools/call"

    name: str
    arguments: Raw | UnsetType = UNSET
    input_responses: Raw | UnsetType = msgspec.field(default=UNSET, name="inputResponses")
    """The responses to the input requests in an earlier result of the tool call; only at protocol version
    2026-07-28.
    """
    request_state: Any | UnsetType = msgspec.field(default=UNSET, name="requestState")
    meta: RequestMeta | UnsetType | None = msgspec.field(default=UNSET, name="_meta")
    task: Any | UnsetType = UNSET
    """A `TaskRequest`, which requests that the call runs as a task. Clients at protocol version 2025-06-18 and
    older may send any value.
    """


class TextContent(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class CallToolResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a tool call. Clients that were written for Codex read `error` after a failed turn."""

    error: str | UnsetType = UNSET
    content: tuple[TextContent, ...]
    is_error: bool | UnsetType = UNSET
    structured_content: Any | UnsetType = UNSET
    meta: ResultMeta | UnsetType = msgspec.field(default=UNSET, name="_meta")


LARGE_RESULT_BYTES: Final = 1024 * 1024


def typed_result(value: Struct, *, is_error: bool = False) -> CallToolResult:
    """Return a tool result that contains `value` both as JSON text and as structured content. `is_error` is True if
    the tool call failed.
    """
    encoded = msgspec.json.encode(value)
    text: Any = encoded.decode() if len(encoded) < LARGE_RESULT_BYTES else Raw(_as_json_string(encoded))
    return CallToolResult(content=(TextContent(text=text),), is_error=is_error, structured_content=Raw(encoded))


def _as_json_string(encoded: bytes) -> bytes:
    """Return a JSON string whose content is the JSON text `encoded`.

    No Python string is created, because a Python string could take four bytes for each character.
    """
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
