"""What the executor, the fork server and the supervisors say to one another.

Needs the standard library alone, and little of that: the fork server has nothing else. All of it goes
between parts of one program of one version, and none of it comes from a command.
"""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, Literal

    Laid = tuple[bytes, bytes | None, bool]
    """What a launcher mounts, as `ports/commands.py` has it: where, what, and whether it may be written to."""
    Approved = tuple[tuple[int, int], tuple[int, int]]
    """Device and inode of the working directory and of the program, in the order of `REPLACEABLE`."""

__all__ = [
    "ENDED",
    "ERROR_NUMBERS",
    "FAILED",
    "FALLEN",
    "GIVES_WAY",
    "KILL",
    "MESSAGE",
    "MOVED",
    "READY",
    "REPLACEABLE",
    "REPLACED",
    "REQUEST_SIZE",
    "START",
    "STEPS",
    "UNCONFINED",
    "UNSEEN",
    "UNSTARTED",
    "Request",
    "Restriction",
]

MESSAGE: Final = struct.Struct("=cqq")
"""A kind, a number, and when it was said, in nanoseconds of the monotonic clock, which all processes
share. All of one size, so that one read is one message."""

START: Final = b"S"
"""To the fork server, with three descriptors (control, stdout, stderr): fork a supervisor, under this number."""
KILL: Final = b"K"
"""To the fork server: the supervisor with this number does not answer; kill it and what it leaves."""
FALLEN: Final = b"X"
"""From the fork server: the supervisor with this number was killed, and what it left is dead."""
GIVES_WAY: Final = b"W"
"""From the fork server: there is no supervisor with this number, and none will be forked any more."""
READY: Final = b"r"
"""From a supervisor: the command is about to run, in this session. Said before it can do anything."""
FAILED: Final = b"f"
"""From a supervisor: the command could not be started, for this error number."""
UNCONFINED: Final = b"u"
"""From a supervisor: the command was not started, as its restriction could not be laid on. The number is
that of the step in `STEPS` times `ERROR_NUMBERS`, and the error number."""
UNSTARTED: Final = b"l"
"""From a supervisor: the launcher ended with this wait status, and has not started the command."""
MOVED: Final = b"m"
"""From a supervisor: of what the launcher was to mount, the one with this index is not in its place. It has not
started the command."""
UNSEEN: Final = b"n"
"""From a supervisor: what the launcher has mounted cannot be looked at, for this error number. It has not started
the command."""
REPLACED: Final = b"p"
"""From a supervisor: the command was not started, as something is not what was approved. The number is the index
in `REPLACEABLE`."""
ENDED: Final = b"e"
"""From a supervisor: the command ended with this wait status, and all that it started is dead."""

STEPS: Final = (
    "making the rules of Landlock",
    "closing what is not for the command",
    "giving up the gain of privileges",
    "laying on Landlock",
    "laying on seccomp",
)
"""On the way to a restricted command, in order."""
REPLACEABLE: Final[tuple[Literal["directory"], Literal["program"]]] = ("directory", "program")
"""What a command is approved with, besides its words."""
ERROR_NUMBERS: Final = 4096
"""No system has as many of them."""

REQUEST_SIZE: Final = struct.Struct("=Q")
"""In front of a request: how many bytes it has."""


class Restriction:
    """What a process gives up before it becomes the command, as `ports/commands.py` has it."""

    __slots__ = ("files", "network", "rules", "scoped", "seccomp")

    def __init__(
        self, *, files: int, network: int, scoped: int, rules: tuple[tuple[bytes, int], ...], seccomp: bytes
    ) -> None:
        self.files, self.network, self.scoped, self.rules, self.seccomp = files, network, scoped, rules, seccomp


class Request:
    """A command as it travels to its supervisor, over the control socket."""

    __slots__ = ("approved", "argv", "cwd", "env", "files", "mounts", "reports", "restriction")

    def __init__(
        self,
        *,
        argv: tuple[bytes, ...],
        cwd: bytes,
        env: Mapping[bytes, bytes],
        files: tuple[bytes, ...],
        reports: bool,
        mounts: tuple[Laid, ...],
        restriction: Restriction | None,
        approved: Approved | None = None,
    ) -> None:
        self.argv, self.cwd, self.env, self.approved = argv, cwd, env, approved
        self.files, self.reports, self.mounts, self.restriction = files, reports, mounts, restriction

    def packed(self) -> bytes:
        """With its size in front."""
        parts = {name: getattr(self, name) for name in self.__slots__}
        if (its := self.restriction) is not None:
            parts["restriction"] = {name: getattr(its, name) for name in its.__slots__}
        data = marshal.dumps(parts)
        return REQUEST_SIZE.pack(len(data)) + data

    @classmethod
    def unpacked(cls, data: bytes) -> Request:
        """From what follows the size."""
        parts = marshal.loads(data)
        if parts["restriction"] is not None:
            parts["restriction"] = Restriction(**parts["restriction"])
        return cls(**parts)
