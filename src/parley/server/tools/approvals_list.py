"""The tool `approvalsList`, which lists the open approvals."""

from __future__ import annotations

from parley.server.access import may_see
from parley.server.approval_text import listed
from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ApprovalsListArguments, ApprovalsListResult

__all__ = ["list_approvals"]


async def list_approvals(call: ToolCall, args: ApprovalsListArguments) -> CallToolResult:
    if args.conversation_id is None:
        asking = await call.server.conversations.awaiting_approval()
    else:
        asking = [await call.conversation(args.conversation_id)]
    seen = (one for one in asking if may_see(call.principal, one.id))
    found = [(approval, one.id) for one in seen if (approval := one.approvals.open) is not None]
    found.sort(key=lambda one: one[0].at)
    return typed_result(ApprovalsListResult(approvals=tuple(listed(*one) for one in found)))
