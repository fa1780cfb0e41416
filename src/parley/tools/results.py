"""Creates the model-facing text for the results of commands and patches (docs/protocol.md#shell)."""

from __future__ import annotations

import sys
from typing import Final, Literal

from parley.common.os_errors import limit_reached
from parley.conversation.records import StreamOutput
from parley.ports.commands import SandboxPolicy
from parley.ports.tools import RejectedByPolicy, RejectedByUser
from parley.tools.truncation import both_for_model, for_model
from parley.wire.events import Duration
from parley.wire.jsonrpc import encode
from parley.wire.text import replace_surrogates

__all__ = [
    "BAD_ARGUMENTS",
    "as_duration",
    "denied_by_sandbox",
    "failed_in_sandbox",
    "internal_error",
    "ran",
    "rejected",
]

BAD_ARGUMENTS = "failed to parse function arguments: "

_SANDBOX: Final = "MacosSeatbelt" if sys.platform == "darwin" else "LinuxSeccomp"
"""The name of the sandbox in messages to clients and models. It is the same for all sandbox mechanisms of an
operating system.
"""


def ran(output: str, *, exit_code: int, seconds: float) -> str:
    """Return the model-facing text for a command or patch that ran to its end."""
    metadata = {"exit_code": exit_code, "duration_seconds": round(seconds, 1)}
    return encode({"output": output, "metadata": metadata}).decode()


def rejected(what: Literal["exec command", "patch"], verdict: RejectedByPolicy | RejectedByUser) -> str:
    """Return the model-facing text for an action that the policy or the user rejected. `what` names the action in
    the text.
    """
    match verdict:
        case RejectedByPolicy(why=why):
            return replace_surrogates(f"{what} rejected: {why}")
        case RejectedByUser(reason=None):
            return f"{what} rejected by user"
        case RejectedByUser(reason=reason):
            return replace_surrogates(f"{what} rejected by user: {reason}")


def failed_in_sandbox(why: str, policy: SandboxPolicy | None) -> str:
    """Return the model-facing text for a command or patch that failed for the reason `why`. `policy` is the policy
    of its sandbox; None if there was no sandbox.
    """
    return f"failed in sandbox {'None' if policy is None else _SANDBOX} with execution error: {why}"


def denied_by_sandbox(exit_code: int, *, stdout: StreamOutput | None, stderr: StreamOutput | None) -> str:
    """Return the model-facing text for a confined command or patch that failed. The sandbox may or may not have
    caused the failure.
    """
    if stdout is None or stderr is None:
        texts = tuple("" if one is None else for_model(one) for one in (stdout, stderr))
    else:
        texts = both_for_model(stdout, stderr)
    return f"sandbox denied exec error, exit code: {exit_code}, stdout: {texts[0]}, stderr: {texts[1]}"


def internal_error(bug: Exception) -> str:
    """Return the model-facing text for an error that a bug in Parley caused.

    The details of the error are in the log.
    """
    return limit_reached(bug) or f"internal error: {type(bug).__name__}"


def as_duration(seconds: float) -> Duration:
    whole = int(seconds)
    return Duration(secs=whole, nanos=int((seconds - whole) * 1_000_000_000))
