"""The tool `conversationStatus`, which returns the state of a conversation."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from parley.conversation.state import Phase
from parley.server.approval_text import listed
from parley.server.hosts import Features
from parley.server.times import iso
from parley.server.toolcall import ToolCall
from parley.server.turn_results import workspace_state
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import ConversationArguments, ConversationStatusResult, Owner, Tokens

__all__ = ["status"]


async def status(call: ToolCall, args: ConversationArguments) -> CallToolResult:
    conversation = await call.conversation(args.conversation_id)
    owner = (await call.server.conversations.head(conversation.id)).owner
    state, phase = conversation.state, conversation.phase
    approval = conversation.approvals.open
    if phase is Phase.IDLE:
        owner = None  # the turn has ended, and its owner is about to release the lease
    result = ConversationStatusResult(
        state=phase.value,
        seq=conversation.log.durable,
        title=state.title,
        cwd=state.cwd,
        model=state.model,
        updated_at=iso(state.updated_at),
        approvals=() if approval is None else (listed(approval, conversation.id),),
        tokens=_shown_tokens(state.tokens, call.features),
        owner=None if owner is None else Owner(pid=owner.pid, since=iso(state.since)),
        workspace=workspace_state(conversation.workspace) if call.features.additions else UNSET,
    )
    return typed_result(result)


def _shown_tokens(tokens: Tokens | None, features: Features) -> Tokens | None:
    """Return `tokens`, without the cost if the client does not get Parley's additions to the protocol
    (`Features.additions`).
    """
    return tokens if tokens is None or features.additions else replace(tokens, cost_micros=UNSET)
