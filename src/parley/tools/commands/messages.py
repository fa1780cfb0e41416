"""The messages between the executor, the fork server and the supervisors.

Uses the standard library alone, because the fork server loads it. Both ends always have the same version. A command
cannot send these messages.
"""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False  # as in `typing`, whose import would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, Literal

    MountSpec = tuple[bytes, bytes | None, bool]
    """A `Mount` of `ports/commands.py`: the mount point, the source, and whether it is writable."""
    Approved = tuple[tuple[int, int], tuple[int, int]]
    """Device and inode of the working directory and of the program, in the order of `REPLACEABLE`."""

__all__ = [
    "ENDED",
    "ERROR_NUMBERS",
    "FAILED",
    "MESSAGE",
    "MOUNTS_UNREADABLE",
    "MOUNT_MISMATCH",
    "READY",
    "REPLACEABLE",
    "REPLACED",
    "REQUEST_SIZE",
    "START",
    "STEPS",
    "UNCONFINED",
    "UNSTARTED",
    "Request",
    "Restriction",
]

MESSAGE: Final = struct.Struct("=cqq")
"""The format of a report: a kind, a number, and the time of sending, in nanoseconds of the monotonic clock,
which all processes share. All reports have the same size, so that one read returns one report.
"""

START: Final = b"s"
"""To the fork server, with three descriptors (control, stdout, stderr): make a supervisor take them over. The
fork server sends the same message to the supervisor that was forked in advance.
"""
READY: Final = b"r"
"""From a supervisor: the command is about to run. The number is the process id of the supervisor."""
FAILED: Final = b"f"
"""From a supervisor: the command could not be started; the number is the errno."""
UNCONFINED: Final = b"u"
"""From a supervisor: the command was not started, because its restriction could not be applied. The number is the
index of the step in `STEPS` times `ERROR_NUMBERS`, plus the errno."""
UNSTARTED: Final = b"l"
"""From a supervisor: the launcher ended with this wait status and has not started the command."""
MOUNT_MISMATCH: Final = b"m"
"""From a supervisor: the command was not started, because the mount with this index is not the requested one."""
MOUNTS_UNREADABLE: Final = b"n"
"""From a supervisor: the command was not started, because the mounts of the launcher cannot be read; the number
is the errno."""
REPLACED: Final = b"p"
"""From a supervisor: the command was not started, because its directory or program is not the approved one. The
number is the index in `REPLACEABLE`."""
ENDED: Final = b"e"
"""From a supervisor: the command ended with this wait status, and all of its processes are dead."""

STEPS: Final = (
    "creating the Landlock ruleset",
    "closing descriptors",
    "dropping privileges",
    "applying Landlock",
    "applying seccomp",
)
"""The steps that restrict a command, in order."""
REPLACEABLE: Final[tuple[Literal["directory"], Literal["program"]]] = ("directory", "program")
"""The parts of a command that an approval covers besides its words."""
ERROR_NUMBERS: Final = 4096
"""A number above every errno."""

REQUEST_SIZE: Final = struct.Struct("=Q")
"""The format of the length of a request in bytes, which precedes the request."""


class Restriction:
    """A `Restriction` of `ports/commands.py`, encoded."""

    __slots__ = ("files", "network", "rules", "scoped", "seccomp")

    def __init__(
        self, *, files: int, network: int, scoped: int, rules: tuple[tuple[bytes, int], ...], seccomp: bytes
    ) -> None:
        self.files, self.network, self.scoped, self.rules, self.seccomp = files, network, scoped, rules, seccomp


class Request:
    """A command, encoded for its supervisor."""

    __slots__ = ("approved", "argv", "cwd", "env", "files", "mounts", "reports", "restriction")

    def __init__(
        self,
        *,
        argv: tuple[bytes, ...],
        cwd: bytes,
        env: Mapping[bytes, bytes],
        files: tuple[bytes, ...],
        reports: bool,
        mounts: tuple[MountSpec, ...],
        restriction: Restriction | None,
        approved: Approved | None = None,
    ) -> None:
        self.argv, self.cwd, self.env, self.approved = argv, cwd, env, approved
        self.files, self.reports, self.mounts, self.restriction = files, reports, mounts, restriction

    def packed(self) -> bytes:
        """Return the bytes to send: the length, then the request."""
        parts = {name: getattr(self, name) for name in self.__slots__}
        if (restriction := self.restriction) is not None:
            parts["restriction"] = {name: getattr(restriction, name) for name in restriction.__slots__}
        data = marshal.dumps(parts)
        return REQUEST_SIZE.pack(len(data)) + data

    @classmethod
    def unpacked(cls, data: bytes) -> Request:
        """Return the request from the bytes after the length."""
        parts = marshal.loads(data)
        if parts["restriction"] is not None:
            parts["restriction"] = Restriction(**parts["restriction"])
        return cls(**parts)
