"""What the model is told of something that ran (docs/protocol.md, the shell tool)."""

from __future__ import annotations

from parley.wire.events import Duration
from parley.wire.jsonrpc import encode

__all__ = ["BAD_ARGUMENTS", "as_duration", "internal_error", "ran"]

BAD_ARGUMENTS = "failed to parse function arguments: "


def ran(output: str, *, exit_code: int, seconds: float) -> str:
    """A command, or a patch, that ran to its end."""
    metadata = {"exit_code": exit_code, "duration_seconds": round(seconds, 1)}
    return encode({"output": output, "metadata": metadata}).decode()


def internal_error(bug: Exception) -> str:
    """All that is told of a mistake of our own; the log has the rest."""
    return f"internal error: {type(bug).__name__}"


def as_duration(seconds: float) -> Duration:
    whole = int(seconds)
    return Duration(secs=whole, nanos=int((seconds - whole) * 1_000_000_000))
