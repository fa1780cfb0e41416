"""The optional keyword arguments of the typed calls."""

from __future__ import annotations

from typing import Any, TypedDict

from parley.wire.tools import ApprovalPolicy, MessageDelivery, PhaseName, SandboxMode

__all__ = ["CodexOptions", "CreateOptions", "ListOptions", "Overrides", "SendOptions"]


class CreateOptions(TypedDict, total=False):
    """Settings for a new conversation, in addition to its model and directory."""

    approval_policy: ApprovalPolicy
    sandbox: SandboxMode
    config: dict[str, Any]
    profile: str
    base_instructions: str


class Overrides(CreateOptions, total=False):
    """Settings that a message changes for its own turn and for later turns."""

    parent_message_id: str
    model: str
    cwd: str


class SendOptions(Overrides, total=False):
    """The optional arguments of `Conversation.send`."""

    delivery: MessageDelivery
    """The way in which the server delivers the message while a turn is running: "join" passes the message to that
    turn, and "queue" keeps the message until the turn has ended. The default is "join".
    """
    output_schema: dict[str, Any]
    """A JSON Schema for the agent's text in the turn that the message begins."""


class ListOptions(TypedDict, total=False):
    """Filters and page options for a list of conversations."""

    limit: int | None
    cursor: str | None
    cwd: str | None
    text: str | None
    """A string to search for in the title and in the messages from the user and the agent; None means any
    conversation.
    """
    state: PhaseName | None
    archived: bool | None


class CodexOptions(CreateOptions, total=False):
    """Options for a `codex` call. The client sends them with the argument names of the tool `codex`."""

    model: str
    cwd: str
    repository: str
    developer_instructions: str
    compact_prompt: str
    include_plan_tool: bool
