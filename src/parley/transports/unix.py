"""Frames between processes of one user, over unix sockets in a private directory.

Checks names, modes and the user of the other process. A name stays in the directory while its process listens, and
remains if the process was killed. No name is bound twice, so another process may remove a name that accepts no
connection.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Final

from parley.common.limited_log import LimitedLog
from parley.common.unix_sockets import is_confined, is_of_same_user, short_path
from parley.transports.descriptors import STOP_READING_BYTES, DescriptorTransport

__all__ = ["MOST_UNREAD_BYTES", "Connection", "Listener", "connect", "names_in", "prepare_directory", "unique_name"]

log = logging.getLogger(__name__)

MOST_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""A process that leaves more than the longest message unread is disconnected: it was stopped, or it hangs."""

BACKLOG: Final = 128
"""How many connections may wait to be accepted."""

ACCEPT_AGAIN_SECONDS: Final = 0.1
"""When to accept connections again after the process ran out of descriptors."""

UNFINISHED_SECONDS: Final = 3600.0
"""Age after which an unfinished name is removed: it exists for a millisecond, unless its process was killed."""

_NAME: Final = re.compile(r"[0-9]+-[0-9a-f]{16}\.sock")
_UNFINISHED: Final = ".new"


class Connection(DescriptorTransport):
    """One end of a socket. `close` closes both its descriptors."""

    def __init__(
        self,
        channel: socket.socket,
        *,
        stop_reading_at: int = STOP_READING_BYTES,
        most_unread: int = MOST_UNREAD_BYTES,
        why_too_large: Callable[[int], str | None] = lambda size: None,
        received: bytes = b"",
    ) -> None:
        """Take over the socket, and close it if that fails.

        Raises:
            OSError: no descriptor is left.
        """
        with channel:
            fd = channel.fileno()
            super().__init__(
                stdin=fd,
                stdout=fd,
                stop_reading_at=stop_reading_at,
                most_unread=most_unread,
                why_too_large=why_too_large,
                received=received,
            )


class Listener:
    """A socket on which this process listens."""

    def __init__(self, directory: str, name: str, *, on_channel: Callable[[socket.socket], None]) -> None:
        """Listen under a name, which replaces a file of that name.

        `on_channel` is called with each connection of a process of the same user.

        Raises:
            OSError: the system refuses.
        """
        self.name = name
        self._path = os.path.join(directory, self.name)
        self._on_channel, self._log = on_channel, LimitedLog(log)
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
            if not is_of_same_user(channel):
                self._log.warning("refused a connection of another user")
                channel.close()
                return
            if is_confined(channel):
                self._log.warning("refused a connection of a process that is more confined than this one")
                channel.close()
                return
            self._on_channel(channel)
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # the other process has left
        except OSError as error:
            self._log.warning("cannot accept a connection of another process: %s", error)
            self._loop.remove_reader(self._socket)
            self._again = self._loop.call_later(
                ACCEPT_AGAIN_SECONDS, self._loop.add_reader, self._socket, self._accept
            )


def connect(directory: str, name: str) -> Connection | None:
    """Connect to the process that listens under a name; if no process listens there, remove the name and return
    None.

    Raises:
        BlockingIOError: its backlog is full; try again later.
        OSError: the system refuses.
    """
    if not _NAME.fullmatch(name):
        return None
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.setblocking(False)
        with short_path(directory, name) as path:
            channel.connect(path)
        if not is_of_same_user(channel):
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


def unique_name() -> str:
    """Return a name for a socket of this process, which no process has used before."""
    return f"{os.getpid()}-{os.urandom(8).hex()}.sock"


def prepare_directory(directory: str) -> None:
    """Create a directory for sockets if it is missing, make it private, and remove unfinished names.

    Raises:
        OSError: the system refuses, or the directory belongs to another user.
    """
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

    The socket is bound to a temporary name, and renamed when it listens. The system shows every process the name
    that a socket was bound to, so the real name stays hidden from commands that may not read the directory.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.setblocking(False)
        with short_path(directory, os.urandom(8).hex() + _UNFINISHED) as unfinished:
            channel.bind(unfinished)
            try:
                os.chmod(unfinished, 0o600)
                channel.listen(BACKLOG)
                os.rename(unfinished, os.path.join(os.path.dirname(unfinished), name))
            except OSError:
                _remove(unfinished)
                raise
    except BaseException:
        channel.close()
        raise
    return channel


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
