"""Sets the limit on open files. The server raises its own limit, because many conversations need many pipes and
connections. The programs that the server starts get the original limit. Programs that use `select`, or that close
every possible descriptor, work better with a low limit.
"""

from __future__ import annotations

import resource

__all__ = ["limit_program", "program_limit", "raise_own_limit"]

_given: int | None = None
"""The soft limit of this process before it was raised; None if the limit was not raised."""


def raise_own_limit() -> None:
    """Raise this process's soft limit on open files to its hard limit. If the system refuses this, keep the soft
    limit. Call this before any program is started.
    """
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return  # some systems allow less than they report
    _given = soft


def program_limit() -> int:
    """Return the soft limit on open files for the programs that the server starts."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _given is None else _given


def limit_program(pid: int) -> None:
    """Set the soft limit on open files of the running process `pid` to the limit that the server had when it was
    started. Do nothing if the server did not raise its limit, or if the system cannot change the limit of another
    process.
    """
    if _given is None or not hasattr(resource, "prlimit"):
        return
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_given, hard))
    except (OSError, ValueError):
        pass  # the program has ended, runs as another user, or has lowered its hard limit
