"""The messages between the executor, the fork server and the supervisors.

This module imports only the standard library, because the fork server loads it. Both ends of a connection run the
same version. A command cannot send these messages.
"""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False  # set as in `typing`, because importing `typing` would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, Literal

    MountSpec = tuple[bytes, bytes | None, bool]
    """An encoded `Mount` of `ports/commands.py`: the mount point, the source (None for a new file system), and
    whether the mount is writable.
    """
    Approved = tuple[tuple[int, int], tuple[int, int]]
    """The device and inode of the approved working directory, and those of the approved program, in the order of
    `REPLACEABLE`.
    """

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
    "UNLIMITED",
    "UNSTARTED",
    "EncodedRestriction",
    "Request",
]

MESSAGE: Final = struct.Struct("=cqq")
"""The format of a report: a kind, a number, and the time of sending. The time is in nanoseconds of the monotonic
clock, which all processes share. All reports have the same size, so that one read returns one report.
"""

START: Final = b"s"
"""A message that requests a command from the fork server. Three descriptors are attached: the control socket,
stdout and stderr. The fork server passes them to a supervisor in a message of the same kind.
"""
READY: Final = b"r"
"""A report from a supervisor: the command is about to run. The report's number is the process id of the supervisor.
"""
FAILED: Final = b"f"
"""A report from a supervisor or from the fork server: the command could not be started. The report's
number is the errno.
"""
UNCONFINED: Final = b"u"
"""A report from a supervisor: the command was not started, because its restriction could not be applied. The
report's number is the index of the failed step in `STEPS` times `ERROR_NUMBERS`, plus the errno.
"""
UNSTARTED: Final = b"l"
"""A report from a supervisor: bubblewrap ended without starting the command. The report's number is the wait
status of bubblewrap.
"""
MOUNT_MISMATCH: Final = b"m"
"""A report from a supervisor: the command was not started, because a mount is missing or differs from the requested
mount. The report's number is the index of this mount in the list of requested mounts.
"""
MOUNTS_UNREADABLE: Final = b"n"
"""A report from a supervisor: the command was not started, because bubblewrap's mounts could not be read or were
not made in time. The report's number is the errno.
"""
UNLIMITED: Final = b"i"
"""A report from a supervisor: the command was not started, because the number of its processes could not be
limited. The report's number is the errno.
"""
REPLACED: Final = b"p"
"""A report from a supervisor: the command was not started, because its working directory or program is not the
approved one. The report's number is the index of the replaced part in `REPLACEABLE`.
"""
ENDED: Final = b"e"
"""A report from a supervisor: the command ended, and all of its processes are dead. The report's number is the wait
status of the command.
"""

STEPS: Final = (
    "creating the Landlock ruleset",
    "closing descriptors",
    "dropping privileges",
    "applying Landlock",
    "applying seccomp",
)
"""The steps that restrict a command, in the order in which they are applied."""
REPLACEABLE: Final[tuple[Literal["directory"], Literal["program"]]] = ("directory", "program")
"""The parts of a command that another process could replace after an approval. Before the command starts, they are
compared with the approved parts.
"""
ERROR_NUMBERS: Final = 4096
"""The number by which an `UNCONFINED` report multiplies the index of the failed step, before it adds the errno. The
number is larger than every errno.
"""

REQUEST_SIZE: Final = struct.Struct("=Q")
"""The format of the length field that precedes a request. The length is in bytes."""


class EncodedRestriction:
    """The rights that a supervisor gives up permanently before it executes a command: a `Restriction` of
    `ports/commands.py`, with the paths of its rules as bytes.
    """

    __slots__ = ("files", "network", "rules", "scoped", "seccomp")

    def __init__(
        self, *, files: int, network: int, scoped: int, rules: tuple[tuple[bytes, int], ...], seccomp: bytes
    ) -> None:
        self.files, self.network, self.scoped, self.rules, self.seccomp = files, network, scoped, rules, seccomp


class Request:
    """A command, encoded for its supervisor."""

    __slots__ = ("approved", "argv", "cwd", "env", "files", "max_processes", "mounts", "reports", "restriction")

    def __init__(
        self,
        *,
        argv: tuple[bytes, ...],
        cwd: bytes,
        env: Mapping[bytes, bytes],
        files: tuple[bytes, ...],
        reports: bool,
        mounts: tuple[MountSpec, ...],
        max_processes: int | None,
        restriction: EncodedRestriction | None,
        approved: Approved | None = None,
    ) -> None:
        self.argv, self.cwd, self.env, self.approved = argv, cwd, env, approved
        self.files, self.reports, self.mounts, self.restriction = files, reports, mounts, restriction
        self.max_processes = max_processes

    def packed(self) -> bytes:
        """Return the bytes to send: the length of the encoded request, then the encoded request."""
        parts = {name: getattr(self, name) for name in self.__slots__}
        if (restriction := self.restriction) is not None:
            parts["restriction"] = {name: getattr(restriction, name) for name in restriction.__slots__}
        data = marshal.dumps(parts)
        return REQUEST_SIZE.pack(len(data)) + data

    @classmethod
    def unpacked(cls, data: bytes) -> Request:
        """Decode a request from the bytes after the length field."""
        parts = marshal.loads(data)
        if parts["restriction"] is not None:
            parts["restriction"] = EncodedRestriction(**parts["restriction"])
        return cls(**parts)
