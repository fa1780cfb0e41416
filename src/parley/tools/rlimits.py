"""How many files may be open: as many as the system allows for us, as before for the programs that we start.

A server of many conversations holds many pipes and connections. A program that waits with `select`, or
closes every descriptor that there could be, is better off with what the user gave it.
"""

from __future__ import annotations

import resource

__all__ = ["limit_program", "program_limit", "raise_own_limit"]

_given: int | None = None
"""What our own limit was before we raised it."""


def raise_own_limit() -> None:
    """Let this process open as many files as the system allows; to be called before there are programs."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return  # some systems allow less than they say
    _given = soft


def program_limit() -> int:
    """How many a program may open, unless it asks for more."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _given is None else _given


def limit_program(pid: int) -> None:
    """Give a program that was just started the limit that it would have had without us."""
    if _given is None or not hasattr(resource, "prlimit"):
        return
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_given, hard))
    except (OSError, ValueError):
        pass  # it has ended, runs as somebody else, or may not have so many by now
