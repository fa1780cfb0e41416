"""Running one command, from its start to the end of everything it started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from parley.wire.events import OutputStream

__all__ = ["Command", "Commands", "Ended"]


class Command(Struct, frozen=True, kw_only=True):
    """A program with its words; no shell stands in between."""

    argv: tuple[str, ...]
    cwd: str
    """Absolute."""
    env: Mapping[str, str]
    """All of it: nothing of the server's own environment is added, and nothing else but a mark of the command."""
    timeout_seconds: float


class Ended(Struct, frozen=True, kw_only=True):
    """How a command ended; exactly one of the first three says so."""

    exit_code: int | None = None
    signal: int | None = None
    """What killed it, when that was not us."""
    timed_out: bool = False
    seconds: float


class Commands(Protocol):
    """Whatever can run commands."""

    async def run(self, command: Command, *, output: Callable[[OutputStream, bytes], None]) -> Ended:
        """Run it to its end; `output` is called with what it says, as it is read, and not after the return.

        When this returns or raises, nothing that the command started is left running, however it
        tried to get away. A process outside that holds its pipes delays the return by half a second
        at most. Cancelling kills all of it and raises within that time too.

        Raises:
            CommandNotStarted: there was nothing to run, or the system refused.
        """
        ...
