"""The transport between processes of one user, over Unix sockets in a private directory.

The module checks names, file modes and the user of the other process. A socket file exists while its process is
listening, and remains if the process is killed. A unique name belongs to only one process. Any process may
therefore remove a socket file with a unique name if the socket accepts no connections.
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
from parley.wire.text import quoted

__all__ = ["MAX_UNREAD_BYTES", "Connection", "Listener", "connect", "names_in", "prepare_directory", "unique_name"]

log = logging.getLogger(__name__)

MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""The maximum number of bytes that a process may leave unread before it is disconnected. A process that reads its
messages does not reach this limit; a process that is suspended or hangs can reach it.
"""

BACKLOG: Final = 128
"""The maximum number of connections that may wait to be accepted."""

ACCEPT_AGAIN_SECONDS: Final = 0.1
"""The delay, in seconds, before connections are accepted again after the process had no free descriptor."""

UNFINISHED_SECONDS: Final = 3600.0
"""The age in seconds at which a temporary socket file is removed. A socket has a temporary name for about a
millisecond, until it is listening. A temporary file remains only if the process is killed during this time.
"""

_NAME: Final = re.compile(r"[0-9]+-[0-9a-f]{16}\.sock")
_UNFINISHED: Final = ".new"


class Connection(DescriptorTransport):
    """One end of a socket connection. `close` closes the descriptors for reading and for writing."""

    def __init__(
        self,
        channel: socket.socket,
        *,
        stop_reading_at: int = STOP_READING_BYTES,
        most_unread: int = MAX_UNREAD_BYTES,
        why_too_large: Callable[[int], str | None] = lambda size: None,
        received: bytes = b"",
    ) -> None:
        """Take ownership of the socket `channel`.

        The socket is closed even if this method raises an error. The other arguments have the same meaning as for
        `DescriptorTransport`.

        Raises:
            OSError: the process has no free descriptor.
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
    """A Unix socket on which this process is listening."""

    def __init__(self, directory: str, name: str, *, on_channel: Callable[[socket.socket], None]) -> None:
        """Listen on the socket `name` in `directory`. An existing socket file with this name is replaced.

        `on_channel` is called with each connection from a process of the same user, except from sandboxed commands.

        Raises:
            OSError: the socket cannot be created.
        """
        self.name = name
        self._path = os.path.join(directory, self.name)
        self._on_channel, self._log = on_channel, LimitedLog(log)
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._directory = directory
        self._socket = _bound(directory, self.name)
        self._file = _identity(self._path)
        self._loop.add_reader(self._socket, self._accept)

    @property
    def is_removed(self) -> bool:
        """True if the socket file was removed, so that no process can connect any more."""
        return _identity(self._path) is None

    def bind_again(self) -> None:
        """Create the socket file again after another process has removed the file. Open connections continue.

        Raises:
            OSError: the socket cannot be created.
        """
        channel = _bound(self._directory, self.name)
        self._stop_accepting()
        self._socket, self._file = channel, _identity(self._path)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop listening and remove the socket file."""
        if self._file == _identity(self._path):  # if the file was replaced, the name now belongs to another process
            _remove(self._path)
        self._stop_accepting()

    def _stop_accepting(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket)
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
            return  # the other process has disconnected
        except OSError as error:
            self._log.warning("cannot accept a connection of another process: %s", error)
            self._loop.remove_reader(self._socket)
            self._again = self._loop.call_later(
                ACCEPT_AGAIN_SECONDS, self._loop.add_reader, self._socket, self._accept
            )


def connect(directory: str, name: str) -> Connection | None:
    """Connect to the process that is listening on the socket `name` in `directory`. Return None if no process of
    the same user is listening on this socket.

    If the process that created the socket has exited, the socket file is removed.

    Raises:
        BlockingIOError: the backlog of the process is full; try again later.
        OSError: the connection failed for another reason.
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
    # This end always reads. If both ends could stop reading, they could wait for each other forever.
    return Connection(channel, stop_reading_at=MAX_UNREAD_BYTES)


def names_in(directory: str) -> list[str]:
    """Return the names of all sockets in a directory, including the sockets of killed processes. The list is empty
    if the directory does not exist.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        return [name for name in os.listdir(directory) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return []


def unique_name() -> str:
    """Return a name for a socket of this process that no process has used before."""
    return f"{os.getpid()}-{os.urandom(8).hex()}.sock"


def prepare_directory(directory: str) -> None:
    """Create a directory for sockets if it is missing, make it private, and remove old temporary socket files.

    Raises:
        OSError: the directory cannot be created, read or changed, or belongs to another user.
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
    """Create a socket with the name `name` in `directory`, begin to listen on it, and return it.

    The socket is bound to a temporary name, which is renamed when the socket is listening. Linux shows every
    process the name to which a socket was bound, but not the final name. The final name therefore stays hidden from
    commands that cannot read the directory.

    Raises:
        FileExistsError: a file that is not a socket has this name.
        OSError: the socket cannot be created.
    """
    final = os.path.join(directory, name)
    if _is_other_file(final):
        raise FileExistsError(errno.EEXIST, f"{quoted(final)} exists and is not a socket", final)
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
    """Return whether the process that created the socket file `name` has exited. The caller must have tried to
    connect to the socket without success. On Linux, a refused connection proves that the process has exited. On
    other systems, the process id in the name is checked.
    """
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


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and the inode of the file `path`; None if the file does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_other_file(path: str) -> bool:
    """Return whether `path` exists and is not a socket."""
    try:
        return not stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # another process removed the file, or it belongs to another user
