"""The rights that Landlock can restrict.

Which rights exist depends on the version of Landlock's kernel interface (ABI).
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final

__all__ = [
    "OLDEST",
    "READ",
    "SCOPES_SINCE",
    "WRITE",
    "WRITE_TO_FILE",
    "Files",
    "Network",
    "Scope",
    "files_of",
    "network_of",
    "scopes_of",
]

OLDEST: Final = 3
"""The oldest supported version of Landlock: the first version that can restrict the truncation of files."""


class Files(IntFlag):
    """Rights to files and directories. The values are the bits of the kernel interface."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15
    RESOLVE_UNIX = 1 << 16


class Network(IntFlag):
    BIND_TCP = 1 << 0
    CONNECT_TCP = 1 << 1


class Scope(IntFlag):
    """Kinds of communication that a Landlock restriction can limit to the processes under this restriction."""

    ABSTRACT_UNIX_SOCKET = 1 << 0
    SIGNAL = 1 << 1


# The rights are plain integers, because they are combined for every rule of every command.

READ: Final = int(Files.READ_FILE | Files.EXECUTE)
"""The rights to read and run a file. Listing a directory is a separate right."""

WRITE_TO_FILE: Final = int(Files.WRITE_FILE | Files.TRUNCATE)

WRITE: Final = int(
    Files.WRITE_FILE
    | Files.REMOVE_DIR
    | Files.REMOVE_FILE
    | Files.MAKE_DIR
    | Files.MAKE_REG
    | Files.MAKE_SOCK
    | Files.MAKE_FIFO
    | Files.MAKE_SYM
    | Files.REFER
    | Files.TRUNCATE
)
"""The rights to write. They do not include the right to create devices, because root could write to the whole disk
through a device.
"""

_SINCE: Final = {Files.REFER: 2, Files.TRUNCATE: 3, Files.IOCTL_DEV: 5, Files.RESOLVE_UNIX: 9}
_NETWORK_SINCE: Final = 4
SCOPES_SINCE: Final = 6
"""The first version of Landlock that can apply a `Scope`. Older versions cannot prevent a command from sending
signals to the user's other processes.
"""


def files_of(abi: int) -> int:
    """Return all file rights that Landlock can restrict in the version `abi`, as a bit mask."""
    return sum(int(right) for right in Files if _SINCE.get(right, 1) <= abi)


def network_of(abi: int) -> int:
    return int(Network.BIND_TCP | Network.CONNECT_TCP) if abi >= _NETWORK_SINCE else 0


def scopes_of(abi: int) -> int:
    return int(Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL) if abi >= SCOPES_SINCE else 0
