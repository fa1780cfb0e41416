"""Limits of open files: the server raises its own limit, and programs get the limit that the server was started
with.

A server of many conversations holds many pipes and connections. Programs that use `select`, or that close every
possible descriptor, work better with the limit of the user.
"""

from __future__ import annotations

import resource

__all__ = ["limit_program", "program_limit", "raise_own_limit"]

_given: int | None = None
"""The soft limit of this process before it was raised."""


def raise_own_limit() -> None:
    """Raise the limit of this process to the maximum. Call it before any program is started."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return  # some systems allow less than they report
    _given = soft


def program_limit() -> int:
    """Return the soft limit of open files for the programs that the server starts."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _given is None else _given


def limit_program(pid: int) -> None:
    """Give a program that was just started the limit that the server was started with."""
    if _given is None or not hasattr(resource, "prlimit"):
        return
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_given, hard))
    except (OSError, ValueError):
        pass  # it has ended, runs as another user, or has a lower hard limit by now
