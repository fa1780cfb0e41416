"""Approvals: requests from the agent, which the client approves or denies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import UnsetType

from parley.wire import tools
from parley.wire.elicitation import ElicitationParams
from parley.wire.events import Decision

__all__ = ["Approval", "OnApproval"]

T = TypeVar("T")

ApprovalKind: TypeAlias = Literal["exec", "patch", "limit"]

Decide: TypeAlias = Callable[[Decision, str | None, float | None], Awaitable[None]]
"""A function that sends a decision on an approval to the server. Its arguments are the decision, the reason for the
decision (None for no reason), and the timeout of the call in seconds (None for the default timeout).
"""


class Approval:
    """A request to run a command, to apply a patch or to continue beyond a limit.

    Approvals are passed to the `on_approval` callback and listed by `Client.approvals`. Only the first decision has
    an effect. If the approval has already been decided, the methods of an approval from `on_approval` raise
    `AlreadyDecided`, and the methods of an approval from `Client.approvals` raise `ToolFailed`. All methods raise
    `Disconnected` if the connection to the server has ended. The methods of an approval from `Client.approvals`
    raise `CallTimedOut` if the server does not respond in time.
    """

    def __init__(
        self,
        decide: Decide,
        *,
        kind: ApprovalKind,
        message: str,
        approval_id: str | None,
        conversation_id: str | None,
        call_id: str,
        command: tuple[str, ...] | None,
        cwd: str | None,
        changes: dict[str, Any] | None,
        reason: str | None = None,
        grant_root: str | None = None,
        leaves_sandbox: bool = False,
    ) -> None:
        self._decide = decide
        self.kind = kind
        self.message = message
        """The text of the approval request, for people to read."""
        self.approval_id, self.conversation_id = approval_id, conversation_id
        """The ids of the approval and its conversation; None with protocol version 2025-06-18 or earlier, because
        approval requests then contain no ids.
        """
        self.call_id = call_id
        """The id of the model's tool call; empty if the approval is about a limit."""
        self.command, self.cwd = command, cwd
        """The command and its working directory; None if the approval is not about a command."""
        self.changes = changes
        """The file changes of a patch, keyed by absolute path; None if the approval is not about a patch."""
        self.reason = reason
        """The reason that the model gave; None if the model gave no reason, or if `Client.approvals` returned this
        approval.
        """
        self.grant_root = grant_root
        """The directory to which a patch requests write access; None if the patch requests no such access."""
        self.leaves_sandbox = leaves_sandbox
        """True if the action would run outside the sandbox; always False with protocol version 2025-06-18 or
        earlier.
        """

    async def approve(self, *, timeout_seconds: float | None = None) -> None:
        """Allow the action once."""
        await self._decide("approved", None, timeout_seconds)

    async def approve_for_session(self, *, timeout_seconds: float | None = None) -> None:
        """Allow the action. If the action is a command, also allow the same command for `[approvals] session_hours`
        hours, in the same directory and with the same sandbox settings.
        """
        await self._decide("approved_for_session", None, timeout_seconds)

    async def deny(self, reason: str | None = None, *, timeout_seconds: float | None = None) -> None:
        """Deny the action. The agent gets the reason and continues."""
        await self._decide("denied", reason, timeout_seconds)

    async def abort(self, *, timeout_seconds: float | None = None) -> None:
        """Deny the action and end the turn."""
        await self._decide("abort", None, timeout_seconds)


OnApproval: TypeAlias = Callable[[Approval], Awaitable[None] | None]


def approval_from_request(params: ElicitationParams, decide: Decide) -> Approval:
    """Return the approval that the params of an `elicitation/create` request describe. `decide` sends the
    decision.
    """
    kinds: dict[str, ApprovalKind] = {"exec-approval": "exec", "patch-approval": "patch", "limit": "limit"}
    return Approval(
        decide,
        kind=kinds[params.codex_elicitation],
        message=params.message,
        approval_id=_given(params.parley_approval_id),
        conversation_id=_given(params.parley_conversation_id),
        call_id=params.codex_call_id,
        command=_given(params.codex_command),
        cwd=_given(params.codex_cwd),
        changes=_given(params.codex_changes),
        reason=_given(params.codex_reason),
        grant_root=_given(params.codex_grant_root),
        leaves_sandbox=params.parley_leaves_sandbox is True,
    )


def approval_from_list(item: tools.ListedApproval, decide: Decide) -> Approval:
    """Return the approval that an item of an `approvalsList` result describes. `decide` sends the decision."""
    return Approval(
        decide,
        kind=item.kind,
        message=item.message,
        approval_id=item.approval_id,
        conversation_id=item.conversation_id,
        call_id=item.call_id,
        command=_given(item.command),
        cwd=_given(item.cwd),
        changes=_given(item.changes),
        leaves_sandbox=item.leaves_sandbox is True,
    )


def _given(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value
