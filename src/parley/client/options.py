"""Optional arguments of the typed calls, in Python spelling."""

from __future__ import annotations

from typing import Any, TypedDict

from parley.wire.tools import ApprovalPolicy, PhaseName, SandboxMode

__all__ = ["CodexOptions", "CreateOptions", "ListOptions", "Overrides"]


class CreateOptions(TypedDict, total=False):
    """Settings of a new conversation besides its model and directory."""

    approval_policy: ApprovalPolicy
    sandbox: SandboxMode
    config: dict[str, Any]
    profile: str
    base_instructions: str


class Overrides(CreateOptions, total=False):
    """Settings that a message can change, from that message on."""

    parent_message_id: str
    model: str
    cwd: str


class ListOptions(TypedDict, total=False):
    """Filters of a list of conversations, and its page."""

    limit: int | None
    cursor: str | None
    cwd: str | None
    text: str | None
    """A part of the title, or of a message of the user or the agent."""
    state: PhaseName | None
    archived: bool | None


class CodexOptions(CreateOptions, total=False):
    """Options of a `codex` call, sent in the spelling of that tool."""

    model: str
    cwd: str
    developer_instructions: str
    compact_prompt: str
    include_plan_tool: bool
