"""Decides at which commit, and on which branch, the next turn of a conversation begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from parley.errors import BRANCH_DIVERGED, COMMIT_MISSING
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import ConversationId
from parley.workspaces.names import branch_of, is_branch_of, next_branch

__all__ = ["Start", "choose_start"]


class Start(Struct, frozen=True, kw_only=True):
    """The commit and the branch at which a turn begins."""

    commit: str
    branch: str
    code: str | None = None
    """The error code of a problem that is reported to clients; None if there is no problem."""
    message: str | None = None
    """The error message of the problem; None if there is no problem."""


async def choose_start(
    conversation_id: ConversationId,
    last: WorkspaceUpdated | None,
    *,
    tips: Mapping[str, str],
    base: str,
    head: str | None,
    has_last: bool,
    is_ancestor: Callable[[str, str], Awaitable[bool]],
) -> Start:
    """Return the commit and the branch at which the next turn begins.

    `last` is the last `workspace_updated` event in the log of the conversation; None if there is none. `tips` are
    the branches in the repository with their commits, and `base` is the commit of the base branch. `head` is the
    commit of the worktree on this disk; None if there is none. `has_last` is True if the commit of `last` is on
    this disk or in the repository. `is_ancestor` is called with two commits. It returns whether they are equal or
    the first is an ancestor of the second.

    The commit in the log takes precedence over the commit of the worktree, because the worktree on this node may be
    older than the work of another node.
    """
    is_own = last is not None and is_branch_of(last.branch, conversation_id)
    branch = last.branch if is_own and last is not None else branch_of(conversation_id)
    tip = tips.get(branch)
    code = message = None
    if last is None:
        commit = tip or base
    elif not has_last:
        commit = tips.get(last.branch) or base
        where = f"only the node {last.node} has it" if isinstance(last.node, str) else "it was never pushed"
        code, message = COMMIT_MISSING, f"the commit {last.commit} is missing, because {where}"
    elif not is_own or tip is None or await is_ancestor(tip, last.commit):
        commit = last.commit
    elif await is_ancestor(last.commit, tip):
        commit = tip
    else:
        commit = last.commit
        code, message = BRANCH_DIVERGED, f"the branch {branch} in the repository has other commits"
    if head is not None and head != commit and await is_ancestor(commit, head):
        commit = head  # the commit belongs to the conversation, but the log does not contain the commit yet
    while (tip := tips.get(branch)) is not None and not await is_ancestor(tip, commit):
        branch = next_branch(branch)
    return Start(commit=commit, branch=branch, code=code, message=message)
