"""The optional arguments of the typed calls, by the names that Python spells them with."""

from __future__ import annotations

from typing import Any, TypedDict

from parley.wire.tools import ApprovalPolicy, SandboxMode

__all__ = ["CodexOptions", "CreateOptions", "Overrides"]


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


class CodexOptions(CreateOptions, total=False):
    """What a `codex` call may be told; sent in the spelling of that tool."""

    model: str
    cwd: str
    include_plan_tool: bool
