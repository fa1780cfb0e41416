"""Decides which actions need an approval (docs/protocol.md, who decides).

A pure function of settings and action. Does not know who is asked, what was approved before, how commands are
confined, nor which commands are safe.
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
"""The reason of the second question about one command or patch; clients match on it."""

OUTSIDE: Final = RejectedByPolicy(why="writing outside of the project; rejected by user approval settings")


class Ask(Struct, frozen=True, kw_only=True):
    """The action needs an approval."""

    reason: str | None = None
    """The reason for the approval request, which clients show."""
    leaves_sandbox: bool
    """True if an approved action runs without the sandbox of the settings; False if the settings have no sandbox.
    """
    within: Granted | None = None
    """The sandbox policy of the approved action, if it stays in a sandbox. Such an approval never applies to the
    whole session.
    """


AFTER_FAILURE: Final = Ask(reason=RETRY, leaves_sandbox=True)
"""True if an action that failed in the sandbox may be retried without it."""

Decision = Granted | RejectedByPolicy | Ask


def decide(
    action: Action,
    settings: Settings,
    *,
    bounds: SandboxPolicy | None,
    unconfined: str | None,
    safe: bool = False,
    unrestored: Sequence[str] = (),
) -> Decision:
    """Decide whether an action runs, is refused, or needs an approval.

    `bounds` is the sandbox policy of the settings; None: no sandbox. `unconfined` says why the system cannot
    confine the action; None: it can. A `safe` command is confined by the read-only policy. `unrestored` are
    protected files in the writable directories that an earlier command changed and that could not be restored: a
    command that may write there needs an approval.
    """
    if action.has_failed:
        return AFTER_FAILURE
    if isinstance(action, RunCommand):
        decision = _decide_command(action, settings, bounds, unconfined, safe=safe)
        return _with_unrestored(decision, settings, tuple(unrestored)) if unrestored else decision
    return _decide_patch(action, settings, bounds, unconfined)


def _decide_command(
    action: RunCommand, settings: Settings, bounds: SandboxPolicy | None, unconfined: str | None, *, safe: bool
) -> Decision:
    policy, has_sandbox = settings.approval_policy, _has_sandbox(settings)
    if policy != "untrusted" and not has_sandbox:
        return Granted()
    if safe and unconfined is None:
        return Granted(bounds=read_only(settings), known_safe=True)
    if policy == "untrusted" or (policy == "on-request" and action.escalated):
        return Ask(reason=action.justification, leaves_sandbox=has_sandbox)
    return _within(bounds, settings, unconfined)


def _with_unrestored(decision: Decision, settings: Settings, unrestored: tuple[str, ...]) -> Decision:
    reason = unrestored_reason(unrestored)
    if isinstance(decision, Ask):
        return replace(decision, reason=f"{reason}; {decision.reason}" if decision.reason else reason)
    if not isinstance(decision, Granted) or decision.bounds is None or not decision.bounds.writable:
        return decision
    if settings.approval_policy == "never":
        return RejectedByPolicy(why=reason)
    within = replace(decision, by_person=True, accepted=unrestored)
    return Ask(reason=reason, leaves_sandbox=False, within=within)


def _decide_patch(
    action: ApplyPatch, settings: Settings, bounds: SandboxPolicy | None, unconfined: str | None
) -> Decision:
    policy, has_sandbox = settings.approval_policy, _has_sandbox(settings)
    ask = Ask(leaves_sandbox=has_sandbox)
    if policy == "untrusted":
        return ask
    may_be_written = not has_sandbox or (bounds is not None and _lie_in(action.paths, bounds.writable))
    if may_be_written and (action.inside_cwd or policy == "on-failure"):
        return _within(bounds, settings, unconfined)
    return OUTSIDE if policy == "never" else ask


def _within(bounds: SandboxPolicy | None, settings: Settings, unconfined: str | None) -> Granted | RejectedByPolicy:
    """Decide without an approval: run in the sandbox, or refuse."""
    if not _has_sandbox(settings):
        return Granted()
    if unconfined is not None or bounds is None:
        return RejectedByPolicy(
            why=f"no sandbox is available on this system: {unconfined or 'it has no sandbox policy'}"
        )
    return Granted(bounds=bounds, ask_again=settings.approval_policy == "on-failure")


def _has_sandbox(settings: Settings) -> bool:
    return settings.sandbox_mode != "danger-full-access"


def _lie_in(paths: Sequence[str], roots: Sequence[WritableRoot]) -> bool:
    from pathlib import PurePath  # imported here: a server starts without it

    return all(any(PurePath(path).is_relative_to(root.path) for root in roots) for path in paths)
