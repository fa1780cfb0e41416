"""Decides which actions need an approval (docs/protocol.md#approval-policies).

The decision is a pure function of the settings and the action. Other modules request and store approvals, confine
commands and recognise safe commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from parley.agent.sandbox_policy import read_only
from parley.config.types import Settings
from parley.ports.commands import SandboxPolicy, WritableRoot, unrestored_reason
from parley.ports.tools import Action, ApplyPatch, Granted, RejectedByPolicy, RunCommand

__all__ = ["AFTER_FAILURE", "RETRY", "Ask", "Decision", "decide"]

RETRY: Final = "command failed; retry without sandbox?"
"""The reason given in the approval request that asks whether to repeat a failed command or patch without the
sandbox. Clients match on this string.
"""

OUTSIDE: Final = RejectedByPolicy(why="writing outside of the project; rejected by user approval settings")


class Ask(Struct, frozen=True, kw_only=True):
    """The decision that an action needs a person's approval."""

    reason: str | None = None
    """The model's justification, or `RETRY` for an action that failed in the sandbox; None if the model gave no
    justification.
    """
    unrestored: tuple[str, ...] = ()
    """The protected files that an earlier command changed and that could not be restored. The approval request
    names these files.
    """
    leaves_sandbox: bool
    """True if the approved action runs outside the sandbox that the settings require. False if the settings require
    no sandbox, or if the action stays in a sandbox.
    """
    within: Granted | None = None
    """The permission that the approved action gets if it stays in a sandbox; None if the action runs without a
    sandbox. If the field is not None, an approval never applies to the whole session.
    """


AFTER_FAILURE: Final = Ask(reason=RETRY, leaves_sandbox=True)
"""The decision for an action that failed in the sandbox: a person is asked whether to repeat the action without the
sandbox.
"""

Decision = Granted | RejectedByPolicy | Ask


def decide(
    action: Action,
    settings: Settings,
    *,
    policy: SandboxPolicy | None,
    unconfined: str | None,
    safe: bool = False,
    unrestored: Sequence[str] = (),
) -> Decision:
    """Decide whether an action is allowed, is rejected, or needs an approval.

    `policy` is the sandbox policy that the settings require; None if the settings require no sandbox. `unconfined`
    is the reason why the system cannot confine the action; None if the system can confine it. A `safe` command is
    confined by the read-only policy. `unrestored` lists the protected files in the writable directories that could
    not be restored after an earlier command had changed them. A command that may write to these directories needs
    an approval.
    """
    if action.has_failed:
        return AFTER_FAILURE
    if isinstance(action, RunCommand):
        decision = _decide_command(action, settings, policy, unconfined, safe=safe)
        return _with_unrestored(decision, settings, tuple(unrestored)) if unrestored else decision
    return _decide_patch(action, settings, policy, unconfined)


def _decide_command(
    action: RunCommand, settings: Settings, policy: SandboxPolicy | None, unconfined: str | None, *, safe: bool
) -> Decision:
    approval_policy, has_sandbox = settings.approval_policy, _has_sandbox(settings)
    if approval_policy != "untrusted" and not has_sandbox:
        return Granted()
    if safe and unconfined is None:
        return Granted(policy=read_only(settings), known_safe=True)
    if approval_policy == "untrusted" or (approval_policy == "on-request" and action.escalated):
        return Ask(reason=action.justification, leaves_sandbox=has_sandbox)
    return _within(policy, settings, unconfined)


def _with_unrestored(decision: Decision, settings: Settings, unrestored: tuple[str, ...]) -> Decision:
    if isinstance(decision, Ask):
        return replace(decision, unrestored=unrestored)
    if not isinstance(decision, Granted) or decision.policy is None or not decision.policy.writable:
        return decision
    if settings.approval_policy == "never":
        return RejectedByPolicy(why=unrestored_reason(unrestored))
    within = replace(decision, by_person=True, accepted=unrestored)
    return Ask(unrestored=unrestored, leaves_sandbox=False, within=within)


def _decide_patch(
    action: ApplyPatch, settings: Settings, policy: SandboxPolicy | None, unconfined: str | None
) -> Decision:
    approval_policy, has_sandbox = settings.approval_policy, _has_sandbox(settings)
    ask = Ask(leaves_sandbox=has_sandbox)
    if approval_policy == "untrusted":
        return ask
    may_be_written = not has_sandbox or (policy is not None and _are_below(action.paths, policy.writable))
    if may_be_written and (action.inside_cwd or approval_policy == "on-failure"):
        return _within(policy, settings, unconfined)
    return OUTSIDE if approval_policy == "never" else ask


def _within(policy: SandboxPolicy | None, settings: Settings, unconfined: str | None) -> Granted | RejectedByPolicy:
    """Return the decision for an action that needs no approval. The action runs in the sandbox that the settings
    require. If the system cannot enforce this sandbox, the action is rejected.
    """
    if not _has_sandbox(settings):
        return Granted()
    if unconfined is not None or policy is None:
        return RejectedByPolicy(
            why=f"no sandbox is available on this system: {unconfined or 'it has no sandbox policy'}"
        )
    return Granted(policy=policy, ask_again=settings.approval_policy == "on-failure")


def _has_sandbox(settings: Settings) -> bool:
    return settings.sandbox_mode != "danger-full-access"


def _are_below(paths: Sequence[str], roots: Sequence[WritableRoot]) -> bool:
    from pathlib import PurePath  # imported here: the start of a server does not need this module

    return all(any(PurePath(path).is_relative_to(root.path) for root in roots) for path in paths)
