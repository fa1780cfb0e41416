"""Builds the results of the tools `codex` and `codex-reply` from the entry that ends a turn."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from parley.conversation.records import TurnEnded
from parley.server.hosts import Features
from parley.server.result_notes import ResultNotes
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import ConversationId
from parley.wire.mcp import CallToolResult, TextContent
from parley.wire.tools import CodexResult, WorkspaceState

__all__ = ["turn_result", "workspace_state"]


def workspace_state(workspace: WorkspaceUpdated | None) -> WorkspaceState | UnsetType:
    """Convert `workspace`, the newest commit in the repository of a conversation, to the struct that results
    contain. Return UNSET if there is no commit.
    """
    if workspace is None:
        return UNSET
    return WorkspaceState(
        repository=workspace.repository,
        branch=workspace.branch,
        commit=workspace.commit,
        pushed=workspace.pushed,
    )


def turn_result(
    conversation_id: ConversationId,
    text: str,
    ended: TurnEnded | None,
    notes: ResultNotes,
    features: Features,
    workspace: WorkspaceUpdated | None,
) -> CallToolResult:
    """Return the result of a `codex` or `codex-reply` call.

    `ended` is the record that ends the turn, and `text` is the last message of the turn. If the turn is waiting for
    an approval, `ended` is None and `text` describes the approval. `notes` contains the notes for the model of a
    host. `workspace` is the newest commit in the repository of the conversation; None if there is none.
    """
    is_error = ended is not None and ended.why != "done"
    structured: CodexResult | UnsetType = UNSET
    content: tuple[TextContent, ...] = (TextContent(text=text),)
    shown = text
    if features.explains_results:
        content = (*content, TextContent(text=notes.text))
        shown = "\n\n".join(filter(None, (text, notes.work_notes)))
    if features.additions:
        structured = CodexResult(
            thread_id=conversation_id,
            session_id=conversation_id,
            content=shown,
            message=text,
            reason=UNSET if ended is None else ended.why,
            code=UNSET if ended is None else ended.code,
            workspace=workspace_state(workspace),
        )
    return CallToolResult(
        error=text if is_error else UNSET,
        content=content,
        is_error=True if is_error else UNSET,
        structured_content=structured,
    )
