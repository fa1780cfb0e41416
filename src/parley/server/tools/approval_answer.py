"""The tool `approvalAnswer`, which decides an approval."""

from __future__ import annotations

from parley.runtime.errors import UnknownApproval
from parley.server.access import may_see
from parley.server.errors import ToolNotOffered
from parley.server.sanitize import escape_for_display
from parley.server.toolcall import ToolCall
from parley.wire.ids import ApprovalId
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ApprovalAnswerArguments, PlainOk

__all__ = ["answer_approval"]


async def answer_approval(call: ToolCall, args: ApprovalAnswerArguments) -> CallToolResult:
    if not call.features.may_answer_approvals:
        raise ToolNotOffered("approvalAnswer", setting="approvals.model_may_answer")
    approval_id = ApprovalId(str(args.approval_id))
    conversation = await call.server.conversations.find_by_approval(approval_id)
    if not may_see(call.principal, conversation.id):
        raise UnknownApproval
    reason = escape_for_display(args.reason or "")
    await conversation.approvals.answer(
        approval_id,
        args.decision,
        by="tool",
        principal=call.principal.ref,
        reason=reason,
        deadline=call.deadline,
    )
    return typed_result(PlainOk())
