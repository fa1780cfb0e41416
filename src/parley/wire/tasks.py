"""The messages of MCP tasks. A task is a tool call whose response is sent immediately, and whose result the client
requests later.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

__all__ = [
    "RELATED_TASK",
    "CancelTaskParams",
    "CreateTaskResult",
    "GetTaskParams",
    "ListTasksParams",
    "ListTasksResult",
    "ModernTask",
    "RelatedTask",
    "ResultMeta",
    "Task",
    "TaskParams",
    "TaskResultParams",
    "TaskStatus",
    "TaskStatusChanged",
    "UpdateTaskParams",
]

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]


class Task(Struct, frozen=True, kw_only=True, rename="camel"):
    task_id: str
    status: TaskStatus
    status_message: str | UnsetType = UNSET
    created_at: str
    last_updated_at: str
    ttl: int | None = None
    """The time for which the task is kept, in milliseconds. None means that the task is kept as long as its
    conversation.
    """
    poll_interval: int | UnsetType = UNSET
    """The recommended interval between `tasks/get` requests, in milliseconds."""


class TaskStatusChanged(Task, frozen=True, kw_only=True, rename="camel"):
    METHOD: ClassVar[str] = "notifications/tasks/status"


class CreateTaskResult(Struct, frozen=True, kw_only=True):
    task: Task


class TaskParams(Struct, frozen=True, kw_only=True, rename="camel"):
    """The base class of the params of requests about one task."""

    task_id: str


class GetTaskParams(TaskParams, frozen=True, kw_only=True, rename="camel"):
    METHOD: ClassVar[str] = "tasks/get"


class TaskResultParams(TaskParams, frozen=True, kw_only=True, rename="camel"):
    METHOD: ClassVar[str] = "tasks/result"


class CancelTaskParams(TaskParams, frozen=True, kw_only=True, rename="camel"):
    METHOD: ClassVar[str] = "tasks/cancel"


class UpdateTaskParams(TaskParams, frozen=True, kw_only=True, rename="camel"):
    """Params of `tasks/update`. In protocol version 2026-07-28, a client answers the input requests of a task with
    this method.
    """

    METHOD: ClassVar[str] = "tasks/update"

    input_responses: dict[str, Raw]


class ModernTask(Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of a task at protocol version 2026-07-28."""

    task_id: str
    status: TaskStatus
    status_message: str | UnsetType = UNSET
    created_at: str
    last_updated_at: str
    ttl_ms: int | None = None
    poll_interval_ms: int | UnsetType = UNSET
    input_requests: dict[str, Raw] | UnsetType = UNSET
    """The open input requests of the task, by approval id."""
    result: Raw | UnsetType = UNSET
    """The result of the tool call; set when the task is completed."""


class ListTasksParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "tasks/list"

    cursor: str | UnsetType | None = UNSET


class ListTasksResult(Struct, frozen=True, kw_only=True, rename="camel"):
    tasks: tuple[Task, ...]
    next_cursor: str | UnsetType = UNSET


class RelatedTask(Struct, frozen=True, kw_only=True, rename="camel"):
    task_id: str


class ResultMeta(Struct, frozen=True, kw_only=True):
    """The `_meta` of a result that belongs to a task."""

    related_task: RelatedTask = msgspec.field(name=RELATED_TASK)
