"""The optional arguments of the typed calls, by the names that Python spells them with."""

from __future__ import annotations

from typing import Any, TypedDict

from parley.wire.tools import ApprovalPolicy, PhaseName, SandboxMode

__all__ = ["CodexOptions", "CreateOptions", "ListOptions", "Overrides"]


class CreateOptions(TypedDict, total=False):
    """What a new conversation may be told besides its model and directory."""

    approval_policy: ApprovalPolicy
    sandbox: SandboxMode
    config: dict[str, Any]
    profile: str
    base_instructions: str


class Overrides(CreateOptions, total=False):
    """What a message may change, from that message on."""

    parent_message_id: str
    model: str
    cwd: str


class ListOptions(TypedDict, total=False):
    """Which conversations are listed, and how many at once."""

    limit: int | None
    cursor: str | None
    cwd: str | None
    text: str | None
    """Some of the title, or of what the user or the agent said."""
    state: PhaseName | None
    archived: bool | None


class CodexOptions(CreateOptions, total=False):
    """What a `codex` call may be told; sent in the spelling of that tool."""

    model: str
    cwd: str
    developer_instructions: str
    compact_prompt: str
    include_plan_tool: bool
