"""The file format of recordings. Each line contains one request to a model and its reply (docs/scripted.md).

`recorder.py` records, `scripted.py` plays a recording, and `app/recorded_test.py` converts a recording to a test.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from parley.common.files import read_file
from parley.common.os_errors import os_detail
from parley.models.errors import BadRecording
from parley.models.script import Call, Step

__all__ = [
    "Exchange",
    "RecordedItem",
    "RecordedOutput",
    "RecordedRequest",
    "RecordingDirectories",
    "append_line",
    "conversations_in",
    "create_recording",
    "file_of",
    "is_recording",
    "prepare",
    "read_recording",
]

HEADER: Final = b'{"parley_recording":1}\n'

MAX_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of a recording, in bytes. A request and its reply are not recorded if the file would become
larger.
"""

LOCK_SECONDS: Final = 5.0
"""The maximum time, in seconds, to wait for another process that writes to the same recording."""

LOCK_POLL_SECONDS: Final = 0.01

TAIL_BYTES: Final = 64 * 1024
"""The number of bytes that are read in one step to find the last line end of a recording."""


class RecordedOutput(Struct, frozen=True, kw_only=True):
    """The output of a tool call."""

    call_id: str
    text: str


class RecordedItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item of the history that a request contains. Exactly one field is set, except that `attachments` may be
    set together with `user`.
    """

    user: str | UnsetType = UNSET
    attachments: tuple[str, ...] = ()
    """Descriptions of the images and files in a user message, without their content."""
    assistant: str | UnsetType = UNSET
    call: Call | UnsetType = UNSET
    output: RecordedOutput | UnsetType = UNSET


class RecordedRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a request that the previous request of the conversation does not contain."""

    kept: int = 0
    """The number of items at the beginning of the history that the previous request also contains. These items are
    not in `items`.
    """
    items: tuple[RecordedItem, ...] = ()
    """The items of the history that follow the first `kept` items, without reasoning."""
    instructions: str | UnsetType = UNSET
    """The instructions, if they differ from the instructions of the previous request."""
    context: tuple[str, ...] | UnsetType = UNSET
    """The messages that precede the history, if they differ from those in the previous request."""
    tools: tuple[str, ...] = ()
    """The names of the tools. A request for a summary has no tools."""


class Exchange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to a model and the reply."""

    conversation: str
    at: float
    """The time when the reply ended, in seconds since the epoch."""
    model: str
    request: RecordedRequest
    reply: tuple[Step, ...]
    """The reply, as the steps of a script."""
    interrupted: bool = False
    """True if the turn was interrupted before the reply was complete."""


_EXCHANGE: Final = msgspec.json.Decoder(Exchange)


def is_recording(data: bytes) -> bool:
    """Return whether the content of a file is a recording."""
    return data.startswith(HEADER)


def read_recording(path: str, data: bytes | None = None) -> Iterator[Exchange]:
    """Yield the requests and replies in a recording. `data` is the content of the file, if the caller has already
    read it.

    An incomplete last line is ignored, because the process that wrote it may have been killed. `append_line`
    removes an incomplete last line.

    Raises:
        BadRecording: the file cannot be read, or it is not a recording.
    """
    if data is None:
        try:
            data = read_file(path, limit=2 * MAX_BYTES)
        except OSError as error:
            raise BadRecording(path, os_detail(error)) from None
    if not is_recording(data):
        raise BadRecording(path, "not a recording")
    lines = data[: data.rfind(b"\n")].split(b"\n")[1:]
    for number, line in enumerate(lines, 2):
        try:
            yield _EXCHANGE.decode(line)
        except (ValueError, RecursionError) as error:
            raise BadRecording(path, f"line {number}: {error}") from None


class RecordingDirectories:
    """The open directories of recordings.

    A sandboxed command can replace a directory with a symbolic link. Therefore, the directory of a recording is
    opened only once, and each later access to the recording uses the descriptor of this directory.
    """

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def descriptor(self, path: str) -> int:
        """Return the descriptor of the directory that contains the recording `path`.

        Raises:
            BadRecording: the directory cannot be opened.
        """
        directory = os.path.dirname(path) or "."
        with self._lock:
            if directory not in self._open:
                try:
                    self._open[directory] = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except OSError as error:
                    raise BadRecording(path, f"cannot be created: {os_detail(error)}") from None
            return self._open[directory]


def create_recording(path: str, *, directory_fd: int | None = None) -> None:
    """Create an empty recording that only the current user can read. `directory_fd` is the descriptor of the
    directory that contains the file; None to look up the whole path.

    Raises:
        OSError: the file exists, or it cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    name = _name_in(path, directory_fd)
    descriptor = os.open(name, flags, 0o600, dir_fd=directory_fd)
    try:
        os.write(descriptor, HEADER)
    except OSError:  # for example, the disk is full
        os.unlink(name, dir_fd=directory_fd)
        raise
    finally:
        os.close(descriptor)


def prepare(path: str, directory_fd: int) -> None:
    """Create a recording in an open directory if the file does not exist. Otherwise check that the file is a
    recording.

    Raises:
        BadRecording: the file is not a recording, or it cannot be created.
    """
    try:
        create_recording(path, directory_fd=directory_fd)
    except FileExistsError:
        os.close(_open(path, directory_fd))
    except OSError as error:
        raise BadRecording(path, f"cannot be created: {os_detail(error)}") from None


def file_of(path: str, directory_fd: int) -> tuple[int, int] | None:
    """Return the device and the inode of the recording `path`; None if they cannot be determined. `directory_fd` is
    the descriptor of the directory that contains the recording.
    """
    try:
        status = os.stat(_name_in(path, directory_fd), dir_fd=directory_fd, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def append_line(path: str, line: bytes, directory_fd: int) -> bool:
    """Append a line to a recording in an open directory, and return True. If the recording would become too large,
    append nothing and return False.

    The call blocks while another process writes to the file, at most for `LOCK_SECONDS`.

    Raises:
        BadRecording: the file is not a recording, it cannot be written, or another process does not finish writing.
    """
    descriptor = _open(path, directory_fd)
    try:
        _lock(descriptor, path)
        end = _end_of_last_line(descriptor)
        new = line if end else HEADER + line
        if end + len(new) > MAX_BYTES:
            return False
        os.ftruncate(descriptor, end)
        try:
            _write_all(descriptor, new)
        except OSError:  # for example, the disk is full
            os.ftruncate(descriptor, end)
            raise
    except OSError as error:
        raise BadRecording(path, f"cannot be written: {os_detail(error)}") from None
    finally:
        os.close(descriptor)
    return True


def _lock(descriptor: int, path: str) -> None:
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise BadRecording(path, f"another process has locked it for {LOCK_SECONDS:g} s") from None
        time.sleep(LOCK_POLL_SECONDS)


def _end_of_last_line(descriptor: int) -> int:
    """Return the size of a recording, in bytes, without an incomplete last line. A process that is killed while it
    appends leaves such a line.
    """
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - TAIL_BYTES)
        at = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _name_in(path: str, directory_fd: int | None) -> str:
    return path if directory_fd is None else os.path.basename(path)


def _open(path: str, directory_fd: int) -> int:
    """Open the recording `path` for appending, and return its descriptor. The file must belong to the current user
    and must not be a symbolic link. `directory_fd` is the descriptor of the directory that contains the file.

    An empty file counts as a recording, because another process may be creating the recording, or may have been
    killed while it was creating the recording.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(_name_in(path, directory_fd), flags, dir_fd=directory_fd)
    except OSError as error:
        raise BadRecording(path, f"cannot be opened: {os_detail(error)}") from None
    try:
        status = os.fstat(descriptor)
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_own or os.pread(descriptor, len(HEADER), 0) not in (b"", HEADER):
            raise BadRecording(path, "already exists and is not a recording; refusing to overwrite it")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def conversations_in(exchanges: Iterator[Exchange]) -> Sequence[Sequence[Exchange]]:
    """Return the exchanges of each conversation, in the order in which the conversations began."""
    found: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        found.setdefault(exchange.conversation, []).append(exchange)
    return list(found.values())
