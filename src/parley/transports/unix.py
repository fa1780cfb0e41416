"""Frames between processes of one user, over unix sockets in a private directory.

Checks names, modes and the user of the other process. A name stays in the directory while its process listens, and
afterwards if the process was killed. No name is bound twice, so a process that gets no connection may remove it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from parley.transports.descriptors import STOP_READING_BYTES, DescriptorTransport

__all__ = ["MOST_UNREAD_BYTES", "Connection", "Listener", "connect", "names_in"]

log = logging.getLogger(__name__)

MOST_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""A process that leaves more than the longest message unread is disconnected: it was stopped, or it hangs."""

MOST_PATH_BYTES: Final = 103
"""The longest path that a socket address holds on every system. Linux allows four bytes more."""

BACKLOG: Final = 128
"""How many connections may wait to be accepted."""

ACCEPT_AGAIN_SECONDS: Final = 0.1
"""When to accept connections again after the process ran out of descriptors."""

UNFINISHED_SECONDS: Final = 3600.0
"""Age after which an unfinished name is removed: it exists for a millisecond, unless its process was killed."""

_NAME: Final = re.compile(r"[0-9]+-[0-9a-f]{16}\.sock")
_UNFINISHED: Final = ".new"
_CREDENTIALS: Final = struct.Struct("@iII")
"""`struct ucred` of Linux: process, user, group."""


class Connection(DescriptorTransport):
    """One end of a socket. `close` closes both its descriptors."""

    def __init__(self, channel: socket.socket, *, stop_reading_at: int = STOP_READING_BYTES) -> None:
        """Take over the socket, and close it if that fails.

        Raises:
            OSError: no descriptor is left.
        """
        with channel:
            fd = channel.fileno()
            super().__init__(stdin=fd, stdout=fd, stop_reading_at=stop_reading_at, most_unread=MOST_UNREAD_BYTES)


class Listener:
    """The socket of this process. `on_connection` is called with each connection of a process of the same user."""

    def __init__(self, directory: str, *, on_connection: Callable[[Connection], None]) -> None:
        """Create the directory if it is missing, and make it private.

        Raises:
            OSError: the system refuses, or the directory belongs to another user.
        """
        _prepare(directory)
        self.name = f"{os.getpid()}-{os.urandom(8).hex()}.sock"
        self._path = os.path.join(directory, self.name)
        self._on_connection = on_connection
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._socket = _bound(directory, self.name)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop listening and remove the name."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket)
        _remove(self._path)
        self._socket.close()

    def _accept(self) -> None:
        try:
            channel, _ = self._socket.accept()
            if not _is_ours(channel):
                log.warning("refused a connection of another user")
                channel.close()
                return
            connection = Connection(channel)
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # the other process has left
        except OSError as error:
            log.warning("cannot accept a connection of another process: %s", error)
            self._loop.remove_reader(self._socket)
            self._again = self._loop.call_later(
                ACCEPT_AGAIN_SECONDS, self._loop.add_reader, self._socket, self._accept
            )
            return
        self._on_connection(connection)


def connect(directory: str, name: str) -> Connection | None:
    """Connect to the process that listens under a name; if none does, remove the name and return None.

    Raises:
        BlockingIOError: its backlog is full; try again later.
        OSError: the system refuses.
    """
    if not _NAME.fullmatch(name):
        return None
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.setblocking(False)
        with _short_path(directory, name) as path:
            channel.connect(path)
        if not _is_ours(channel):
            log.warning("%s belongs to another user and was not used", name)
            channel.close()
            return None
    except FileNotFoundError:
        channel.close()
        return None
    except ConnectionRefusedError:
        channel.close()
        if _is_dead(name):
            _remove(os.path.join(directory, name))
        return None
    except BaseException:
        channel.close()
        raise
    # One end always reads, or both could wait for the other to read.
    return Connection(channel, stop_reading_at=MOST_UNREAD_BYTES)


def names_in(directory: str) -> list[str]:
    """Return the names under which processes listen, or listened until they were killed.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        return [name for name in os.listdir(directory) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return []


def _prepare(directory: str) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the directory belongs to another user", directory)
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if name.endswith(_UNFINISHED) and _age(path) > UNFINISHED_SECONDS:
            _remove(path)


def _bound(directory: str, name: str) -> socket.socket:
    """Return a socket that listens under a name.

    The name appears when the socket already listens. The system shows every process the name that a socket was
    bound to. Binding to a temporary name hides the real one from commands that may not read the directory.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.setblocking(False)
        with _short_path(directory, name) as path:
            unfinished = os.path.join(os.path.dirname(path), os.urandom(8).hex() + _UNFINISHED)
            channel.bind(unfinished)
            try:
                os.chmod(unfinished, 0o600)
                channel.listen(BACKLOG)
                os.rename(unfinished, path)
            except OSError:
                _remove(unfinished)
                raise
    except BaseException:
        channel.close()
        raise
    return channel


@contextmanager
def _short_path(directory: str, name: str) -> Iterator[str]:
    """Yield a path of the file that is short enough for a socket address."""
    path = os.path.join(directory, name)
    if len(os.fsencode(path)) <= MOST_PATH_BYTES:
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


def _is_ours(channel: socket.socket) -> bool:
    """Return whether the other process has the same user; without system support, the file modes must suffice."""
    if sys.platform != "linux":
        return True
    told = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return bool(user == os.geteuid())


def _is_dead(name: str) -> bool:
    """Return whether the process of a name that refuses connections has exited. On Linux, a refusal proves it."""
    if sys.platform == "linux":
        return True
    try:
        os.kill(int(name.partition("-")[0]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _age(path: str) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # another process removed it, or it belongs to another user
