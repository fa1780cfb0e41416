"""Who may do what in one conversation: the settings decide, or somebody is asked.

Knows what was allowed for as long as the conversation is loaded. Does not know who is asked nor how:
`questions.py` does.
"""

from __future__ import annotations

import os
from typing import NamedTuple
from uuid import uuid4

from msgspec import UNSET

from parley.agent.bounds import Roots, bounds_for, read_only
from parley.agent.policy import Ask, decide
from parley.config.types import Settings, WorkspaceWrite
from parley.conversation.records import QuestionAsked
from parley.ports.commands import Bounds, Commands
from parley.ports.tools import Action, ApplyPatch, Denied, Granted, Permit, Refused, RunCommand, Verdict
from parley.runtime.questions import Questions
from parley.wire.events import ApplyPatchApprovalRequest, ExecApprovalRequest
from parley.wire.ids import ApprovalId
from parley.wire.text import sayable

__all__ = ["Permits"]


class _Allowed(NamedTuple):
    """What has to be the same for a yes to hold once more."""

    argv: tuple[str, ...]
    real_cwd: str
    sandbox_mode: str
    workspace_write: WorkspaceWrite
    network: bool
    escalated: bool


class Permits:
    """What one conversation may do."""

    def __init__(self, questions: Questions, commands: Commands, roots: Roots) -> None:
        self._questions, self._commands, self._roots = questions, commands, roots
        self._allowed: set[_Allowed] = set()

    def for_turn(self, settings: Settings) -> Permit:
        """What decides for a turn that begins now."""
        bounds = bounds_for(settings, self._roots)

        async def permit(action: Action) -> Verdict:
            return await self._permit(action, settings, bounds)

        return permit

    async def _permit(self, action: Action, settings: Settings, bounds: Bounds | None) -> Verdict:
        allowed = _allowed(action, settings) if isinstance(action, RunCommand) else None
        if allowed is not None and allowed in self._allowed:
            return Granted(by_person=True)
        safe = isinstance(action, RunCommand) and _needs_nobody(action, settings, bounds)
        within = read_only(settings) if safe else bounds
        unconfined = None if within is None else await self._commands.why_unconfined(within)
        verdict = decide(action, settings, bounds=within, unconfined=unconfined, safe=safe)
        if not isinstance(verdict, Ask):
            return verdict
        if isinstance(action, RunCommand) and any("\0" in word for word in (*action.argv, action.cwd)):
            return Refused(why="it holds a NUL character")  # nobody could see what they allow
        answered = await self._questions.ask(*_question(action, verdict), settings.approvals)
        if answered.decision == "approved_for_session" and allowed is not None:
            self._allowed.add(allowed)
        if answered.decision in ("approved", "approved_for_session"):
            return Granted(by_person=True)
        return Denied(reason=answered.reason)


def _paths(bounds: Bounds) -> tuple[str, ...]:
    return tuple(root.path for root in bounds.writable)


def _needs_nobody(action: RunCommand, settings: Settings, bounds: Bounds | None) -> bool:
    """Whether a command is known to do no harm, where that makes a difference."""
    if bounds is None and settings.approval_policy != "untrusted":
        return False
    from parley.agent.safe import is_safe  # loaded by the first command that is judged

    # A program that lies where the agent may have written is not known.
    return is_safe(action, (os.path.realpath(settings.cwd),) if bounds is None else _paths(bounds))


def _allowed(action: RunCommand, settings: Settings) -> _Allowed:
    return _Allowed(
        argv=action.argv,
        real_cwd=os.path.realpath(action.cwd) if "\0" not in action.cwd else action.cwd,
        sandbox_mode=settings.sandbox_mode,
        workspace_write=settings.workspace_write,
        network=settings.network_access,
        escalated=action.escalated,
    )


def _question(action: Action, ask: Ask) -> tuple[ExecApprovalRequest | ApplyPatchApprovalRequest, QuestionAsked]:
    """The event that shows it, and the record."""
    approval_id = ApprovalId(str(uuid4()))
    reason = None if ask.reason is None else sayable(ask.reason)
    shown_reason = UNSET if reason is None else reason
    match action:
        case RunCommand(call_id=call_id, argv=argv, cwd=cwd):
            command, cwd = tuple(map(sayable, argv)), sayable(cwd)
            return (
                ExecApprovalRequest(call_id=call_id, command=command, cwd=cwd, reason=shown_reason),
                QuestionAsked(
                    approval_id=approval_id,
                    kind="exec",
                    call_id=call_id,
                    reason=reason,
                    command=command,
                    cwd=cwd,
                    leaves_sandbox=ask.leaves_sandbox,
                    escalated=action.escalated,
                    has_failed=action.has_failed,
                ),
            )
        case ApplyPatch(call_id=call_id, changes=changes):
            return (
                ApplyPatchApprovalRequest(call_id=call_id, changes=changes, reason=shown_reason),
                QuestionAsked(
                    approval_id=approval_id,
                    kind="patch",
                    call_id=call_id,
                    reason=reason,
                    changes=changes,
                    leaves_sandbox=ask.leaves_sandbox,
                    has_failed=action.has_failed,
                ),
            )
