"""Approvals: requests of the agent that a client decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import UnsetType

from parley.wire import tools
from parley.wire.elicitation import ElicitationParams
from parley.wire.events import Decision

__all__ = ["Approval", "OnQuestion"]

T = TypeVar("T")

ApprovalKind: TypeAlias = Literal["exec", "patch", "limit"]

Decide: TypeAlias = Callable[[Decision, str | None], Awaitable[None]]
"""Sends a decision and its reason to the server."""


class Approval:
    """A request to run a command, to apply a patch or to continue beyond a limit.

    Passed to the `on_question` callback and listed by `Client.approvals`. The first decision counts: the methods
    raise `AlreadyDecided` or `ToolFailed` if there was one, and `Disconnected` if the server has ended.
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
    ) -> None:
        self._decide = decide
        self.kind = kind
        self.message = message
        """The question as a text for people."""
        self.approval_id, self.conversation_id = approval_id, conversation_id
        """None if the server does not send them, at 2025-06-18 and older."""
        self.call_id = call_id
        """The model's call; empty for a limit."""
        self.command, self.cwd = command, cwd
        """The command and its working directory; None for other kinds."""
        self.changes = changes
        """The changes of a patch by absolute path; None for other kinds."""
        self.reason = reason
        """The reason that the model gave; None if it gave none, or if the approval was listed."""
        self.grant_root = grant_root
        """The directory that a patch asks to write to; None if it asks for none."""

    async def approve(self) -> None:
        """Allow the action once."""
        await self._decide("approved", None)

    async def approve_for_session(self) -> None:
        """Allow the action now, and the same action later for as long as the approval for the session holds."""
        await self._decide("approved_for_session", None)

    async def deny(self, reason: str | None = None) -> None:
        """Refuse the action. The agent gets the reason and continues."""
        await self._decide("denied", reason)

    async def abort(self) -> None:
        """Refuse the action and end the turn."""
        await self._decide("abort", None)


OnQuestion: TypeAlias = Callable[[Approval], Awaitable[None] | None]


def asked(params: ElicitationParams, decide: Decide) -> Approval:
    """Return the approval of an `elicitation/create` request."""
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
    )


def listed(question: tools.Question, decide: Decide) -> Approval:
    """Return an approval of `approvalsList`."""
    return Approval(
        decide,
        kind=question.kind,
        message=question.message,
        approval_id=question.approval_id,
        conversation_id=question.conversation_id,
        call_id=question.call_id,
        command=_given(question.command),
        cwd=_given(question.cwd),
        changes=_given(question.changes),
    )


def _given(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value
