"""Writes the text of approval requests and of listed approvals in the form that the protocol version of a client
requires, and reads answers from clients.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import UNSET, Raw
from msgspec.structs import asdict, replace

from parley.agent.policy import RETRY
from parley.conversation.approvals import PendingApproval
from parley.conversation.records import ApprovalRequest, Changed
from parley.errors import ApprovalIsSettled
from parley.ports.commands import unrestored_reason
from parley.runtime.approvals import DISMISSED
from parley.server.hosts import FULL, Features
from parley.server.sanitize import escape_for_display, one_line, quoted_words
from parley.server.times import iso
from parley.wire import tools
from parley.wire.elicitation import (
    FULL_SCHEMA,
    PLAIN_SCHEMA,
    SESSION_FIRST_SCHEMA,
    ApprovalFields,
    ElicitationParams,
    is_dismissal,
    read_answer,
)
from parley.wire.events import ApplyPatchApprovalRequest, Decision, ExecApprovalRequest, FileChange, LimitReached
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import Message, encode
from parley.wire.tasks import RelatedTask
from parley.wire.text import quoted, quoted_command

__all__ = ["decision_of", "elicitation", "listed", "settled_text", "what_is_asked"]


def decision_of(answer: Message, features: Features) -> tuple[Decision, str | None]:
    """Return the decision and the escaped reason in the client's answer. The reason is None if the answer contains
    none.

    If `Features.dismissal_denies` is True for the client, an answer that closes the form without a decision counts
    as a denial.
    """
    decision, reason = read_answer(answer)
    if features.dismissal_denies and is_dismissal(answer):
        decision, reason = "denied", DISMISSED
    return decision, escape_for_display(reason or "")


_Action = ExecApprovalRequest | ApplyPatchApprovalRequest

_FULL_FORM: Final = Raw(encode(FULL_SCHEMA))
_SESSION_FIRST_FORM: Final = Raw(encode(SESSION_FIRST_SCHEMA))
_LAST_REQUEST: Final = (
    "\nThis call cannot ask again. If you approve for this session, the same action needs no further approval."
)
_PLAIN_FORM: Final = Raw(encode(PLAIN_SCHEMA))


LISTED_FILES: Final = 10
"""The maximum number of files of a patch that the text of an approval request lists. Beyond this number, the text
contains only the number of remaining files.
"""


_ASKED_AGAIN: Final[dict[Changed, str]] = {
    "directory": "The working directory was replaced after this was approved.",
    "program": "The program was replaced after this was approved.",
    "files": "A file or directory of this patch was changed after it was approved.",
    "unknown": "Something was changed after this was approved.",
}
"""The first line of the text of an approval request for an action that was approved earlier. The key is the kind of
change that makes another approval necessary.
"""


def elicitation(
    approval: PendingApproval,
    conversation: ConversationId,
    *,
    request: str,
    features: Features,
    task_id: str | None = None,
    session_first: bool = False,
) -> ElicitationParams:
    """Return the parameters of the request `elicitation/create` for the approval.

    `request` is the id of the client's first request that concerned the conversation. `task_id` is the id of the
    task that the approval belongs to; None if the approval belongs to no task. If `session_first` is True, the
    first choice in the form is approval for the session instead of approval for a single action. The message then
    also says that this is the last approval request of the tool call.
    """
    fields = _fields(approval, conversation, request=request, features=features)
    form = _FULL_FORM if features.describes_approvals else _PLAIN_FORM
    return ElicitationParams(
        message=_message(approval, features) + (_LAST_REQUEST if session_first else ""),
        requested_schema=_SESSION_FIRST_FORM if session_first else form,
        meta=_with_task(fields, task_id) if features.describes_approvals else UNSET,
        **asdict(fields),
    )


def _with_task(fields: ApprovalFields, task_id: str | None) -> ApprovalFields:
    return fields if task_id is None else replace(fields, related_task=RelatedTask(task_id=task_id))


def listed(approval: PendingApproval, conversation: ConversationId) -> tools.ListedApproval:
    """Convert the open approval to the struct that tools return to clients."""
    asked = approval.request
    is_command = asked.kind == "exec"
    return tools.ListedApproval(
        approval_id=asked.approval_id,
        conversation_id=conversation,
        call_id=asked.call_id,
        kind=asked.kind,
        message=_message(approval, FULL),
        asked_at=iso(approval.at),
        command=asked.command if is_command else UNSET,
        cwd=asked.cwd if is_command else UNSET,
        changes=asked.changes if asked.kind == "patch" else UNSET,
        leaves_sandbox=True if asked.leaves_sandbox else UNSET,
    )


def _message(approval: PendingApproval, features: Features) -> str:
    shown = approval.event
    if isinstance(shown, LimitReached):
        return f"{one_line(shown.limit)} reached ({shown.amounts}). Go on?"
    again = "" if approval.request.changed is None else f"{_ASKED_AGAIN[approval.request.changed]}\n"
    if not features.describes_approvals:
        reason = f"{one_line(shown.reason)}\n" if shown.reason and _is_given_reasons(shown, features) else ""
        return f"{again}{reason}Allow Codex to {_what(shown)}?"
    outside = ", outside the sandbox" if approval.request.leaves_sandbox else ""
    return (
        f"{again}{_why(shown.reason or '', approval.request)}Allow Codex to {_what(shown)}{outside}?{_files(shown)}"
    )


def _why(reason: str, request: ApprovalRequest) -> str:
    """Split `reason` into the server's reason and the model's reason, and return one line for each of them. A
    missing reason has no line.

    The fields of `request` determine which part of `reason` the server wrote. The text alone does not distinguish
    the two parts, because the model can write the same text as the server. The model's reason is quoted and marked
    as the model's words.
    """
    own = RETRY if request.has_failed else unrestored_reason(request.unrestored) if request.unrestored else ""
    words = reason.removeprefix(own).removeprefix("; ") if own else reason
    return (f"{own}\n" if own else "") + (f"The model says: {quoted_words(words)}\n" if words else "")


def _files(action: _Action) -> str:
    """Return the lines that list the changed files if the action is a patch; an empty string for a command."""
    if not isinstance(action, ApplyPatchApprovalRequest):
        return ""
    lines = [_change(path, change) for path, change in list(action.changes.items())[:LISTED_FILES]]
    if (more := len(action.changes) - len(lines)) > 0:
        lines.append(f"and {more} more")
    return "".join(f"\n- {line}" for line in lines)


def _change(path: str, change: FileChange) -> str:
    if change == "delete":
        return f"delete {quoted(path)}"
    assert not isinstance(change, str)
    if not change.update:
        return f"add {quoted(path)}"
    target = change.update.move_path
    return f"update {quoted(path)}" if target is None else f"move {quoted(path)} to {quoted(target)}"


def what_is_asked(request: ApprovalRequest) -> str:
    """Return a description of the action that `request` asks to allow, such as "run `make` in `/src`"."""
    match request.kind:
        case "exec":
            return f"run `{quoted_command(request.command)}` in `{quoted(request.cwd)}`"
        case "patch":
            paths = [f"`{quoted(path)}`" for path in sorted(request.changes)]
            more = f" and {len(paths) - LISTED_FILES} more" if len(paths) > LISTED_FILES else ""
            return f"change {', '.join(paths[:LISTED_FILES])}{more}"
        case "limit":
            return "go beyond a limit of the settings"


def settled_text(error: ApprovalIsSettled, features: Features) -> str:
    """Return the text that tells a client how the approval in `error` was settled.

    A client that does not get Parley's additions to the protocol (`Features.additions`) gets only the message of
    `error`, without the name and the kind of the decider.
    """
    if not features.additions:
        return str(error)
    who = "" if error.principal is None else f" by {one_line(error.principal)}"
    return f"{error}{who} ({error.by})"


def _what(action: _Action) -> str:
    match action:
        case ExecApprovalRequest(command=command, cwd=cwd):
            return f"run `{quoted_command(command)}` in `{quoted(cwd)}`"
        case ApplyPatchApprovalRequest():
            return "apply proposed code changes"


def _is_given_reasons(action: _Action, features: Features) -> bool:
    """Return whether a client with the given features gets the reason for `action` in the approval request.

    Clients at protocol version 2025-06-18 and older get the reason only for patches.
    """
    return features.describes_approvals or isinstance(action, ApplyPatchApprovalRequest)


def _fields(
    approval: PendingApproval, conversation: ConversationId, *, request: str, features: Features
) -> ApprovalFields:
    shown = approval.event
    approval_id = approval.approval_id if features.describes_approvals else UNSET
    conversation_id = conversation if features.describes_approvals else UNSET
    if isinstance(shown, LimitReached):
        return ApprovalFields(
            codex_elicitation="limit",
            codex_mcp_tool_call_id=request,
            codex_event_id=approval.event_id,
            codex_call_id=approval.request.call_id,
            parley_approval_id=approval_id,
            parley_conversation_id=conversation_id,
        )
    fields = partial(
        ApprovalFields,
        codex_mcp_tool_call_id=request,
        codex_event_id=approval.event_id,
        codex_call_id=shown.call_id,
        codex_reason=shown.reason if _is_given_reasons(shown, features) else UNSET,
        parley_approval_id=approval_id,
        parley_conversation_id=conversation_id,
        parley_leaves_sandbox=True if features.describes_approvals and approval.request.leaves_sandbox else UNSET,
    )
    match shown:
        case ExecApprovalRequest(command=command, cwd=cwd):
            return fields(codex_elicitation="exec-approval", codex_command=command, codex_cwd=cwd)
        case ApplyPatchApprovalRequest(changes=changes, grant_root=grant_root):
            return fields(codex_elicitation="patch-approval", codex_changes=changes, codex_grant_root=grant_root)
