"""`approvalsList`: the questions that wait for an answer."""

from __future__ import annotations

from parley.server.toolcall import ToolCall
from parley.server.wording import listed
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ApprovalsListArguments, ApprovalsListResult

__all__ = ["list_questions"]


async def list_questions(call: ToolCall, args: ApprovalsListArguments) -> CallToolResult:
    wanted = call.host.conversations if args.conversation_id is None else [call.conversation(args.conversation_id)]
    found = [(question, one.id) for one in wanted if (question := one.questions.open) is not None]
    found.sort(key=lambda one: one[0].at)
    return typed_result(ApprovalsListResult(approvals=tuple(listed(*one) for one in found)))
