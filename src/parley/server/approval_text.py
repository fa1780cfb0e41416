"""Writes the texts of an approval, for clients of each version and for the list of open approvals."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import UNSET, Raw
from msgspec.structs import asdict

from parley.agent.policy import RETRY
from parley.conversation.approvals import PendingApproval
from parley.conversation.records import Changed, QuestionAsked
from parley.server.hosts import FULL, Features
from parley.server.sanitize import one_line, quoted_command, quoted_words
from parley.server.times import iso
from parley.wire import tools
from parley.wire.elicitation import FULL_SCHEMA, PLAIN_SCHEMA, ElicitationParams, QuestionFields
from parley.wire.events import ApplyPatchApprovalRequest, ExecApprovalRequest, FileChange, LimitReached
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import encode
from parley.wire.text import quoted

__all__ = ["elicitation", "listed", "what_is_asked"]

_Action = ExecApprovalRequest | ApplyPatchApprovalRequest

_FULL_FORM: Final = Raw(encode(FULL_SCHEMA))
_PLAIN_FORM: Final = Raw(encode(PLAIN_SCHEMA))


LISTED_FILES: Final = 10
"""How many files of a patch the message names; the fields name all."""


_ASKED_AGAIN: Final[dict[Changed, str]] = {
    "directory": "The working directory was replaced after this was approved.",
    "program": "The program was replaced after this was approved.",
    "files": "A file or directory of this patch was changed after it was approved.",
    "unknown": "Something was changed after this was approved.",
}
"""The first line of an approval that is requested again."""


def elicitation(
    approval: PendingApproval, conversation: ConversationId, *, request: str, features: Features
) -> ElicitationParams:
    """Return the parameters of `elicitation/create`.

    `request` is the id of the client's first request that concerned the conversation.
    """
    fields = _fields(approval, conversation, request=request, features=features)
    return ElicitationParams(
        message=_message(approval, features),
        requested_schema=_FULL_FORM if features.full_version else _PLAIN_FORM,
        meta=fields if features.full_version else UNSET,
        **asdict(fields),
    )


def listed(approval: PendingApproval, conversation: ConversationId) -> tools.Question:
    """Return an open approval as the tools show it."""
    asked = approval.request
    is_command = asked.kind == "exec"
    return tools.Question(
        approval_id=asked.approval_id,
        conversation_id=conversation,
        call_id=asked.call_id,
        kind=asked.kind,
        message=_message(approval, FULL),
        asked_at=iso(approval.at),
        command=asked.command if is_command else UNSET,
        cwd=asked.cwd if is_command else UNSET,
        changes=asked.changes if asked.kind == "patch" else UNSET,
    )


def _message(approval: PendingApproval, features: Features) -> str:
    shown = approval.event
    if isinstance(shown, LimitReached):
        return f"{one_line(shown.limit)} reached ({shown.used} of {shown.allowed}). Go on?"
    again = "" if approval.request.changed is None else f"{_ASKED_AGAIN[approval.request.changed]}\n"
    if not features.full_version:
        reason = f"{one_line(shown.reason)}\n" if shown.reason and _is_given_reasons(shown, features) else ""
        return f"{again}{reason}Allow Codex to {_what(shown)}?"
    outside = ", outside the sandbox" if approval.request.leaves_sandbox else ""
    return f"{again}{_why(shown.reason or '')}Allow Codex to {_what(shown)}{outside}?{_files(shown)}"


def _why(reason: str) -> str:
    """Return the line with the reason. A reason of the model is quoted and marked as the model's words."""
    if not reason:
        return ""
    return f"{reason}\n" if reason == RETRY else f"The model says: {quoted_words(reason)}\n"


def _files(shown: _Action) -> str:
    """Return the lines that list the files of a patch by their resolved paths."""
    if not isinstance(shown, ApplyPatchApprovalRequest):
        return ""
    lines = [_change(path, change) for path, change in list(shown.changes.items())[:LISTED_FILES]]
    if (more := len(shown.changes) - len(lines)) > 0:
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


def what_is_asked(asked: QuestionAsked) -> str:
    """Return what an approval allows, as a clause without a subject."""
    match asked.kind:
        case "exec":
            return f"run `{quoted_command(asked.command)}` in `{quoted(asked.cwd)}`"
        case "patch":
            paths = [f"`{quoted(path)}`" for path in sorted(asked.changes)]
            more = f" and {len(paths) - LISTED_FILES} more" if len(paths) > LISTED_FILES else ""
            return f"change {', '.join(paths[:LISTED_FILES])}{more}"
        case "limit":
            return "go beyond a limit of the settings"


def _what(shown: _Action) -> str:
    match shown:
        case ExecApprovalRequest(command=command, cwd=cwd):
            return f"run `{quoted_command(command)}` in `{quoted(cwd)}`"
        case ApplyPatchApprovalRequest():
            return "apply proposed code changes"


def _is_given_reasons(shown: _Action, features: Features) -> bool:
    """Return whether the client gets the reason; clients at older versions get it for patches only."""
    return features.full_version or isinstance(shown, ApplyPatchApprovalRequest)


def _fields(
    approval: PendingApproval, conversation: ConversationId, *, request: str, features: Features
) -> QuestionFields:
    shown = approval.event
    approval_id = approval.approval_id if features.full_version else UNSET
    conversation_id = conversation if features.full_version else UNSET
    if isinstance(shown, LimitReached):
        return QuestionFields(
            codex_elicitation="limit",
            codex_mcp_tool_call_id=request,
            codex_event_id=approval.event_id,
            codex_call_id=approval.request.call_id,
            parley_approval_id=approval_id,
            parley_conversation_id=conversation_id,
        )
    fields = partial(
        QuestionFields,
        codex_mcp_tool_call_id=request,
        codex_event_id=approval.event_id,
        codex_call_id=shown.call_id,
        codex_reason=shown.reason if _is_given_reasons(shown, features) else UNSET,
        parley_approval_id=approval_id,
        parley_conversation_id=conversation_id,
    )
    match shown:
        case ExecApprovalRequest(command=command, cwd=cwd):
            return fields(codex_elicitation="exec-approval", codex_command=command, codex_cwd=cwd)
        case ApplyPatchApprovalRequest(changes=changes, grant_root=grant_root):
            return fields(codex_elicitation="patch-approval", codex_changes=changes, codex_grant_root=grant_root)
