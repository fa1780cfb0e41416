"""Decides which actions of the agent are allowed in one conversation.

The settings allow an action, deny it, or require the approval of a person.

The module `approvals.py` requests approvals. The module `grants.py` checks and creates session grants.
"""

from __future__ import annotations

import os
from uuid import uuid4

from msgspec import UNSET, Struct
from msgspec.structs import replace

from parley.agent.limits import AskToContinue
from parley.agent.policy import AFTER_FAILURE, Ask, Decision, decide
from parley.agent.sandbox_policy import policy_for, read_only
from parley.config.types import Settings
from parley.conversation.records import AnswersFrom, ApprovalRequest
from parley.ports.clock import Clock
from parley.ports.commands import CommandRunner, SandboxPolicy, unrestored_reason
from parley.ports.tools import (
    Action,
    ApplyPatch,
    Authorize,
    Granted,
    RejectedByPolicy,
    RejectedByUser,
    RunCommand,
    Verdict,
)
from parley.runtime.approvals import Answered, OpenApprovals
from parley.runtime.durable_log import DurableLog
from parley.runtime.grants import SessionGrants
from parley.wire.events import ApplyPatchApprovalRequest, ExecApprovalRequest, LimitReached
from parley.wire.ids import ApprovalId, CallId
from parley.wire.text import replace_surrogates

__all__ = ["PermissionGate", "Resumed"]


class Resumed(Struct, frozen=True):
    """The answer to an approval that another process requested, for a turn that this process resumes."""

    request: ApprovalRequest
    answered: Answered


class PermissionGate:
    """Decides whether actions of one conversation's turns are allowed."""

    def __init__(
        self,
        durable_log: DurableLog,
        approvals: OpenApprovals,
        commands: CommandRunner,
        grants: SessionGrants,
        *,
        clock: Clock,
    ) -> None:
        self._log, self._approvals, self._commands, self._grants = durable_log, approvals, commands, grants
        self._clock = clock

    def for_turn(self, settings: Settings, resumed: Resumed | None = None) -> Authorize:
        """Return a function that decides whether an action of a turn is allowed.

        `settings` are the settings of the turn. `resumed` is the answered approval of a turn that another process
        began; None for a new turn.
        """
        policy = policy_for(settings, self._grants.roots)

        async def authorize(action: Action) -> Verdict:
            nonlocal resumed
            # A resumed turn continues with the call that needed the approval. The answer covers no later call.
            before, resumed = resumed, None
            # The server may have loaded other TLS files since the turn began.
            current = None if policy is None else replace(policy, hidden=settings.withheld_paths)
            return await self._authorize(action, settings, current, before)

        return authorize

    def ask_to_continue(self, settings: Settings) -> AskToContinue:
        """Return a function that asks whether a turn with the settings `settings` may exceed a limit.

        An answer that approves for the session is valid only once, because limits have no session grants.
        """

        async def ask(reached: LimitReached) -> bool:
            asked = ApprovalRequest(
                approval_id=_new_id(),
                kind="limit",
                call_id=CallId(""),
                answers_from=settings.approvals.from_,
            )
            return (await self._approvals.ask(reached, asked, settings.approvals)).is_yes

        return ask

    async def _authorize(
        self, action: Action, settings: Settings, policy: SandboxPolicy | None, before: Resumed | None
    ) -> Verdict:
        if before is not None and not before.answered.is_yes and action.call_id == before.request.call_id:
            return await self._verdict(action, settings, before.answered, None)
        if isinstance(action, RunCommand) and self._is_granted(action, settings):
            return Granted(by_person=True)
        verdict = await self._decide(action, settings, policy)
        answers_from = settings.approvals.from_
        if before is not None and _is_about(before.request, action, verdict, answers_from):
            return await self._verdict(action, settings, before.answered, verdict)
        if not isinstance(verdict, Ask):
            return verdict
        if before is not None and before.answered.is_yes and before.request.call_id == action.call_id:
            action = replace(action, changed="unknown")
        request = _approval_request(action, verdict, answers_from)
        answered = await self._approvals.ask(*request, settings.approvals)
        return await self._verdict(action, settings, answered, verdict)

    async def _decide(self, action: Action, settings: Settings, policy: SandboxPolicy | None) -> Decision:
        """Return whether `settings`, the settings of the turn, allow an action, deny it, or require an approval.
        `policy` is the sandbox policy that the settings require; None if they require no sandbox.
        """
        safe = isinstance(action, RunCommand) and _is_known_safe(action, settings, policy)
        within = read_only(settings) if safe else policy
        unconfined = None if within is None else await self._commands.why_unconfined(within)
        unrestored: tuple[str, ...] = ()
        if isinstance(action, RunCommand) and within is not None and within.writable and unconfined is None:
            unrestored = await self._commands.unrestored(within)
        decision = decide(action, settings, policy=within, unconfined=unconfined, safe=safe, unrestored=unrestored)
        asks = isinstance(decision, Ask)
        if asks and isinstance(action, RunCommand) and any("\0" in word for word in (*action.argv, action.cwd)):
            return RejectedByPolicy(why="it contains a NUL character")  # the command cannot be displayed
        return decision

    def _is_granted(self, action: RunCommand, settings: Settings) -> bool:
        approvals = self._log.projections.approvals
        return self._grants.holds(action, settings, approvals, now=self._clock.now())

    async def _verdict(
        self, action: Action, settings: Settings, answered: Answered, decision: Decision | None
    ) -> Verdict:
        if isinstance(decision, Ask) and decision.within is not None:
            return decision.within if answered.is_yes else RejectedByUser(reason=answered.reason)
        if answered.decision == "approved_for_session" and isinstance(action, RunCommand):
            record = self._grants.record(action, settings, answered.principal)
            await self._log.append(*(() if record is None else (record,)))
        if answered.is_yes:
            return Granted(by_person=True)
        return RejectedByUser(reason=answered.reason)


def _is_about(request: ApprovalRequest, action: Action, decision: Decision, answers_from: AnswersFrom) -> bool:
    """Return whether `request`, an earlier approval request, is identical to the request that the action needs
    under the current settings. `decision` is the decision on the action under these settings. `answers_from` is the
    current value of the setting `[approvals] from`.

    The check is necessary because the log may have been imported, or the settings may have changed.
    """
    if request.has_failed and isinstance(decision, Granted) and decision.ask_again:
        action = replace(action, has_failed=True)
        decision = AFTER_FAILURE
    if not isinstance(decision, Ask):
        return False
    _, anew = _approval_request(action, decision, answers_from)
    return replace(anew, approval_id=request.approval_id, changed=request.changed) == request


def _paths(policy: SandboxPolicy) -> tuple[str, ...]:
    return tuple(root.path for root in policy.writable)


def _is_known_safe(action: RunCommand, settings: Settings, policy: SandboxPolicy | None) -> bool:
    """Return whether the action is a command that is known to be safe and therefore needs no approval.

    If `policy` is None and the approval policy is not `untrusted`, the result does not affect whether the action is
    allowed. The command is then not checked, and the result is False.
    """
    if policy is None and settings.approval_policy != "untrusted":
        return False
    from parley.agent.safe import is_safe  # imported here: the module is needed when the first command is checked

    try:
        writable = (os.path.realpath(settings.cwd),) if policy is None else _paths(policy)
    except OSError:
        return False
    # A program in a directory that the agent can write to is not safe.
    return is_safe(action, writable)


def _new_id() -> ApprovalId:
    return ApprovalId(str(uuid4()))


def _approval_request(
    action: Action, ask: Ask, answers_from: AnswersFrom
) -> tuple[ExecApprovalRequest | ApplyPatchApprovalRequest, ApprovalRequest]:
    """Return the event that shows clients the approval request for `action`, and the record of the request.

    `ask` is the decision that requires the approval. `answers_from` is the setting `[approvals] from`, which
    determines the clients that may answer.
    """
    approval_id = _new_id()
    unrestored = tuple(map(replace_surrogates, ask.unrestored))
    reason = None if ask.reason is None else replace_surrogates(ask.reason)
    if unrestored:
        reason = "; ".join(filter(None, (unrestored_reason(unrestored), reason)))
    shown_reason = UNSET if reason is None else reason
    match action:
        case RunCommand(call_id=call_id, argv=argv, cwd=cwd):
            command, cwd = tuple(map(replace_surrogates, argv)), replace_surrogates(cwd)
            return (
                ExecApprovalRequest(call_id=call_id, command=command, cwd=cwd, reason=shown_reason),
                ApprovalRequest(
                    approval_id=approval_id,
                    kind="exec",
                    call_id=call_id,
                    reason=reason,
                    command=command,
                    cwd=cwd,
                    leaves_sandbox=ask.leaves_sandbox,
                    escalated=action.escalated,
                    has_failed=action.has_failed,
                    unrestored=unrestored,
                    covers=action.covers,
                    changed=action.changed,
                    answers_from=answers_from,
                ),
            )
        case ApplyPatch(call_id=call_id, changes=changes):
            return (
                ApplyPatchApprovalRequest(call_id=call_id, changes=changes, reason=shown_reason),
                ApprovalRequest(
                    approval_id=approval_id,
                    kind="patch",
                    call_id=call_id,
                    reason=reason,
                    changes=changes,
                    leaves_sandbox=ask.leaves_sandbox,
                    has_failed=action.has_failed,
                    covers=action.covers,
                    changed=action.changed,
                    answers_from=answers_from,
                ),
            )
