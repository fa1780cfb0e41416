"""Texts that tell the model the result of a command or a patch (docs/protocol.md, the shell tool)."""

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
"""The name by which clients and models know the sandbox, whatever the mechanism."""


def ran(output: str, *, exit_code: int, seconds: float) -> str:
    """Return the text for a command or patch that ran to its end."""
    metadata = {"exit_code": exit_code, "duration_seconds": round(seconds, 1)}
    return encode({"output": output, "metadata": metadata}).decode()


def rejected(what: Literal["exec command", "patch"], verdict: RejectedByPolicy | RejectedByUser) -> str:
    """Return the text for an action that was not allowed."""
    match verdict:
        case RejectedByPolicy(why=why):
            return replace_surrogates(f"{what} rejected: {why}")
        case RejectedByUser(reason=None):
            return f"{what} rejected by user"
        case RejectedByUser(reason=reason):
            return replace_surrogates(f"{what} rejected by user: {reason}")


def failed_in_sandbox(why: str, bounds: SandboxPolicy | None) -> str:
    """Return the text for a command or patch that failed, with or without a sandbox."""
    return f"failed in sandbox {'None' if bounds is None else _SANDBOX} with execution error: {why}"


def denied_by_sandbox(exit_code: int, *, stdout: StreamOutput | None, stderr: StreamOutput | None) -> str:
    """Return the text about a confined command that failed. It is not known whether the sandbox caused the
    failure.
    """
    if stdout is None or stderr is None:
        said = tuple("" if one is None else for_model(one) for one in (stdout, stderr))
    else:
        said = both_for_model(stdout, stderr)
    return f"sandbox denied exec error, exit code: {exit_code}, stdout: {said[0]}, stderr: {said[1]}"


def internal_error(bug: Exception) -> str:
    """Return the text for a bug of Parley; the details are in the log."""
    return limit_reached(bug) or f"internal error: {type(bug).__name__}"


def as_duration(seconds: float) -> Duration:
    whole = int(seconds)
    return Duration(secs=whole, nanos=int((seconds - whole) * 1_000_000_000))
