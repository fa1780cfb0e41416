"""Helpers for Unix sockets between processes of one user: short paths that fit into a socket address, and checks of
the peer process.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["is_confined", "is_of_same_user", "short_path"]

MAX_PATH_BYTES: Final = 103
"""The maximum length, in bytes, of a path in a socket address, so that every supported system accepts the path.
Linux allows four bytes more.
"""

_CREDENTIALS: Final = struct.Struct("@iII")
"""The format of `struct ucred` of Linux, which contains the ids of a process, its user and its group."""


@contextmanager
def short_path(directory: str, name: str) -> Iterator[str]:
    """Yield a path to the file `name` in `directory`. The path is short enough for a socket address.

    Raises:
        OSError: the directory cannot be opened, or this system offers no shorter path.
    """
    path = os.path.join(directory, name)
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield path
        return
    too_long = OSError(errno.ENAMETOOLONG, "the path is too long for a socket", path)
    if sys.platform != "linux":
        raise too_long
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.path.exists(f"/proc/self/fd/{fd}"):
            raise too_long
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def is_of_same_user(channel: socket.socket) -> bool:
    """Return whether the peer process belongs to the same user as this process. Return True on systems other than
    Linux, where the file modes protect the socket.
    """
    if sys.platform != "linux":
        return True
    _, user = _peer(channel)
    return user == os.geteuid()


def is_confined(channel: socket.socket) -> bool:
    """Return whether the peer process appears to be a sandboxed command.

    Landlock does not prevent a command from connecting to a socket whose path the command knows. But a sandboxed
    command has a seccomp filter that it cannot remove. Therefore, a peer counts as confined if it has at least one
    seccomp filter and not the same number of filters as this process. A peer with an unknown number of filters also
    counts as confined. Return False if the number of filters of this process is unknown, or if the system is not
    Linux.
    """
    if sys.platform != "linux":
        return False
    process, _ = _peer(channel)
    ours, theirs = _filters("self"), _filters(str(process))
    return ours is not None and (theirs is None or theirs not in (0, ours))


def _peer(channel: socket.socket) -> tuple[int, int]:
    """Return the PID and the user id of the peer process."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return process, user


def _filters(process: str) -> int | None:
    """Return the number of seccomp filters that apply to a process, or None if the system does not report the
    number.
    """
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Seccomp_filters:")), None)
