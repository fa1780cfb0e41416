"""Builds approval requests: the event, the record of the request, and the record of the settlement."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from parley.conversation.records import ApprovalRequest, ApprovalSettlement
from parley.wire.events import (
    AddedFile,
    ApplyPatchApprovalRequest,
    ExecApprovalRequest,
    LimitReached,
    OtherChange,
    Settlement,
)
from parley.wire.ids import ApprovalId, CallId

__all__ = ["CWD", "approval_id", "approval_settlement", "command_approval", "limit_approval", "patch_approval"]

CWD: Final = "/project"


def approval_id(number: int) -> ApprovalId:
    """Return the id of the approval request with this number on a `LocalServer`."""
    return ApprovalId(f"00000000-0000-4000-8000-{number:012}")


def command_approval(
    number: int, *argv: str, reason: str | None = None, leaves_sandbox: bool = False, cwd: str = CWD
) -> tuple[ExecApprovalRequest, ApprovalRequest]:
    """Build the approval request for a command."""
    call_id = CallId(f"call{number}")
    return (
        ExecApprovalRequest(call_id=call_id, command=argv, cwd=cwd, reason=UNSET if reason is None else reason),
        ApprovalRequest(
            approval_id=approval_id(number),
            kind="exec",
            call_id=call_id,
            reason=reason,
            command=argv,
            cwd=cwd,
            leaves_sandbox=leaves_sandbox,
        ),
    )


def patch_approval(
    number: int,
    *,
    reason: str | None = None,
    grant_root: str | None = None,
    leaves_sandbox: bool = False,
) -> tuple[ApplyPatchApprovalRequest, ApprovalRequest]:
    """Build the approval request for a patch that adds a file."""
    call_id = CallId(f"call{number}")
    changes: dict[str, Any] = {f"{CWD}/new.txt": OtherChange(add=AddedFile(content="hello\n"))}
    return (
        ApplyPatchApprovalRequest(
            call_id=call_id,
            changes=changes,
            reason=UNSET if reason is None else reason,
            grant_root=UNSET if grant_root is None else grant_root,
        ),
        ApprovalRequest(
            approval_id=approval_id(number),
            kind="patch",
            call_id=call_id,
            reason=reason,
            changes=changes,
            leaves_sandbox=leaves_sandbox,
        ),
    )


def limit_approval(
    number: int, limit: str = "turn_calls", *, used: int = 2, allowed: int = 2
) -> tuple[LimitReached, ApprovalRequest]:
    """Build the approval request for a limit."""
    asked = ApprovalRequest(approval_id=approval_id(number), kind="limit", call_id=CallId(""))
    return LimitReached(limit=limit, used=used, allowed=allowed), asked


def approval_settlement(number: int, decision: Settlement = "approved") -> ApprovalSettlement:
    return ApprovalSettlement(approval_id=approval_id(number), decision=decision, by="client")
