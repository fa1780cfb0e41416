"""Compares the mounts that bubblewrap has made with the requested mounts, and limits the number of processes,
before bubblewrap runs its command.

The comparison is necessary because bubblewrap mounts by path. Before bubblewrap mounts a path, another process can
replace a directory in the path with a symbolic link. The kernel reports mounts by names that do not depend on
symbolic links; see docs/decisions/mounts-are-checked.md. This module imports only the standard library, because the
supervisors load it.

In the names in this module, `launcher` means bubblewrap.
"""

from __future__ import annotations

import errno
import os
import resource
import time

from .messages import MOUNT_MISMATCH, MOUNTS_UNREADABLE, UNLIMITED

TYPE_CHECKING = False  # set as in `typing`, because importing `typing` would take a third of the startup time
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from typing import Final

    from .messages import MountSpec

__all__ = ["ExpectedMounts", "HeldLauncher", "MountTable"]

FINAL: Final = (b"/", b"/dev")
"""The mount points that show whether bubblewrap has made all its mounts.

No other process can replace these mount points with a symbolic link. Bubblewrap enters its new root in its last
step. Therefore, when both mount points are mounted as expected, all other mounts exist as well.
"""
CREATED: Final = (b"tmpfs", b"proc")
"""The types of the file systems that bubblewrap creates for a command."""
ESCAPED: Final = (b"\\", b" ", b"\t", b"\n")
"""The characters that the kernel writes as a backslash and three octal digits. The backslash is first, because the
escapes of the other characters contain a backslash, which must not be escaped again.
"""
NAMELESS: Final = b"nfs"
"""The prefix of file system types for which the kernel reports `/` as the mounted directory, even if another
directory is mounted.
"""
REPORT_BYTES: Final = 4096
"""The maximum number of bytes in one read of bubblewrap's reports. Bubblewrap writes fewer bytes before it waits
for the check of its mounts.
"""
TABLE_BYTES: Final = 64 * 1024
ENDED: Final = (errno.EINVAL, errno.ESRCH)
"""Error numbers that the kernel returns for a process that is dead but not yet reaped."""
MOUNT_SECONDS: Final = 5.0
"""The maximum time, in seconds, that bubblewrap may take to make its mounts. Bubblewrap usually needs
milliseconds.
"""
PAUSE_DIVISOR: Final = 4
"""The divisor for the pause between two checks of the mounts. The pause is the elapsed time divided by this number,
so a check is late by at most a quarter of the elapsed time, or by the shortest pause if that is longer.
"""
PAUSE_MILLISECONDS: Final = (1, 50)
"""The shortest and the longest pause between two checks of the mounts, in milliseconds."""


class Mount:
    """A mount, parsed from one line of a `mountinfo` file."""

    __slots__ = ("device", "number", "parent", "point", "root", "type", "writable")

    def __init__(self, line: bytes) -> None:
        words = line.split(b" ")
        self.number, self.parent, self.device, self.root, self.point = words[:5]
        self.writable = words[5].split(b",")[0] != b"ro"
        self.type = words[words.index(b"-", 6) + 1]


class MountTable:
    """The mounts that a process sees, parsed from its `mountinfo` file. Paths stay escaped as in that file."""

    def __init__(self, text: bytes) -> None:
        mounts = [Mount(line) for line in text.split(b"\n") if line]
        numbers = {mount.number for mount in mounts}
        self.devices: Final = {mount.device for mount in mounts}
        self._root: Mount | None = None
        self._upon: dict[tuple[bytes, bytes], Mount] = {}
        for mount in mounts:
            if mount.parent in numbers and mount.parent != mount.number:
                self._upon[mount.parent, mount.point] = mount
            elif mount.point == b"/":
                self._root = mount

    def at(self, path: bytes) -> tuple[Mount, int] | None:
        """Return the mount that contains a path, and the number of mounts that are stacked at exactly that path.
        Return None if the table has no root mount.

        The path is resolved as the kernel does it: from the root, with the topmost mount at each directory.
        """
        here, count = self._root, 0
        if here is None:
            return None
        for place in _prefixes(path):
            count = 1 if place == b"/" else 0
            while (upper := self._upon.get((here.number, place))) is not None:
                here, count = upper, count + 1
        return here, count


class ExpectedMounts:
    """The mounts that bubblewrap is expected to make, with the names that the kernel will report."""

    def __init__(self, specs: tuple[MountSpec, ...], ours: MountTable) -> None:
        """Compute the mounts that bubblewrap is expected to make for `specs`. `ours` is the mount table of the
        current process. Bubblewrap starts with these mounts.

        Raises:
            OSError: `ours` has no root mount.
        """
        self._ours = ours
        self._expected: dict[bytes, _Expected] = {}
        for index, (place, source, may_write) in enumerate(specs):
            point = _escaped(place)
            before = self._expected.get(point)
            self._expected[point] = _Expected(
                index=index,
                source=None if source is None else self._named(_escaped(source)),
                may_write=may_write,
                count=1 + (self._copied_to(point) if before is None else before.count),
            )

    def _named(self, source: bytes) -> tuple[bytes, bytes]:
        """Return the device of a mount's source, and the path of the source within its file system, as the kernel
        will report them.
        """
        found = self._ours.at(source)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        mount, _ = found
        if mount.type.startswith(NAMELESS):
            return mount.device, b"/"
        within = mount.root.rstrip(b"/") + source[len(mount.point.rstrip(b"/")) :]
        return mount.device, within.rstrip(b"/") or b"/"

    def _copied_to(self, point: bytes) -> int:
        """Return the number of mounts of the current process that bubblewrap copies to the mount point `point`.
        Bubblewrap copies them when it mounts a directory above `point`.
        """
        for folder in reversed(list(_prefixes(point))[:-1]):
            if (above := self._expected.get(folder)) is not None:
                found = None if above.source is None else self._ours.at(point)
                return 0 if found is None else found[1]
        return 0

    def are_complete(self, found: MountTable) -> bool:
        """Return whether bubblewrap has made all of its mounts. The mounts may still be wrong. `found` is the mount
        table of bubblewrap.
        """
        return all(self._matches(point, found, known=set()) for point in FINAL)

    def first_mismatch(self, found: MountTable, ours: MountTable) -> int | None:
        """Return the index of the first requested mount that is missing or wrong; None if all mounts are right.

        `found` is the mount table of bubblewrap, and `ours` is the mount table of the current process. `ours` must
        be read after `found`, because the kernel reuses device numbers. In an older table, a device number may
        belong to a file system that has been unmounted since.
        """
        for point, expected in self._expected.items():
            if not self._matches(point, found, known=ours.devices):
                return expected.index
        return None

    def _matches(self, point: bytes, found: MountTable, *, known: set[bytes]) -> bool:
        expected, there = self._expected.get(point), found.at(point)
        if expected is None or there is None:
            return False
        mount, count = there
        if expected.source is None:
            is_it = mount.type in CREATED and mount.device not in known and mount.root == b"/"
        else:
            is_it = (mount.device, mount.root) == expected.source
        return is_it and count == expected.count and (expected.may_write or not mount.writable)


class _Expected:
    """The mount that must be at one mount point. `index` is the index of this mount in the requested mounts.
    `source` is the device and the path that the kernel must report; None for a new file system. `count` is the
    number of mounts that are stacked at the mount point.
    """

    __slots__ = ("count", "index", "may_write", "source")

    def __init__(self, *, index: int, source: tuple[bytes, bytes] | None, may_write: bool, count: int) -> None:
        self.index, self.source, self.may_write, self.count = index, source, may_write, count


def _mountinfo(process: str) -> bytes:
    file = os.open(f"/proc/{process}/mountinfo", os.O_RDONLY)
    try:
        text = b""
        while piece := os.read(file, TABLE_BYTES):
            text += piece
        return text
    finally:
        os.close(file)


class HeldLauncher:
    """A bubblewrap process that waits before it starts its command, until its mounts have been checked and its
    limits have been set.
    """

    def __init__(
        self,
        reports: int,
        gate: socket.socket,
        specs: tuple[MountSpec, ...],
        *,
        max_processes: int | None = None,
        read: Callable[[str], bytes] = _mountinfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the check of a bubblewrap process that writes its reports to the pipe `reports`. Bubblewrap waits
        until a message is sent through the socket `gate`.

        `specs` are the mounts that bubblewrap must make. `max_processes` is the maximum number of processes of the
        command; None if there is no limit. `read` returns the `mountinfo` text of a process. Its argument is a
        process id, or `self` for the current process. `clock` returns the monotonic time in seconds.
        """
        self._reports, self._gate, self._specs = reports, gate, specs
        self._max_processes = max_processes
        self._read, self._clock, self._began_at = read, clock, clock()
        self._expected: ExpectedMounts | None = None
        self.waits = True
        """True while bubblewrap waits for the result of the check. When the check has ended, either bubblewrap runs
        the command or `refused` is set.
        """
        self.reported = b""
        """The bytes that were read from `reports`."""
        self.refused: tuple[bytes, int] | None = None
        """The reason why the command must not run, as a report from the supervisor: its kind and its number (see
        `messages.py`). None if the check has not failed.
        """

    @property
    def pause_milliseconds(self) -> int:
        """The pause before the next check of the mounts, in milliseconds."""
        least, most = PAUSE_MILLISECONDS
        return max(least, min(most, int((self._clock() - self._began_at) * 1000 / PAUSE_DIVISOR)))

    def check(self) -> None:
        """Check the mounts, unless bubblewrap is still mounting.

        If the mounts are right, set the limits and let the command run.

        Set `refused` if the mounts are wrong, cannot be read or are not made in time, or if the limits cannot be
        set.
        """
        try:
            if self._expected is None:
                self._expected = ExpectedMounts(self._specs, MountTable(self._read("self")))
            process = self._process()
            if process is not None and self._expected.are_complete(self._table_of(process)):
                # Read the table again, because parts of the first reading may be older than the last mount.
                index = self._expected.first_mismatch(self._table_of(process), MountTable(self._read("self")))
                self.refused = self._limited(int(process)) if index is None else (MOUNT_MISMATCH, index)
            elif self._clock() - self._began_at < MOUNT_SECONDS:
                return
            else:
                self.refused = MOUNTS_UNREADABLE, errno.ETIMEDOUT
        except OSError as error:
            self.refused = MOUNTS_UNREADABLE, error.errno or errno.EINVAL
        self.waits = False
        if self.refused is None:
            self._open()

    def _process(self) -> str | None:
        """Return the id of the bubblewrap process whose mounts are checked; None if bubblewrap has not reported the
        id yet.
        """
        try:
            self.reported += os.read(self._reports, REPORT_BYTES)
        except BlockingIOError:
            pass
        rest, end, _ = self.reported.partition(b'"child-pid":')[2].partition(b"}")
        number = rest.partition(b",")[0].strip()
        return number.decode() if end and number.isdigit() else None

    def _table_of(self, process: str) -> MountTable:
        """Return the mounts of a process; an empty table if the process has ended. The end of bubblewrap is not an
        error here, because the supervisor reports it.
        """
        try:
            return MountTable(self._read(process))
        except OSError as error:
            if error.errno in ENDED or (error.errno == errno.ENOENT and not _is_hidden(process)):
                return MountTable(b"")
            raise

    def _limited(self, process: int) -> tuple[bytes, int] | None:
        """Limit the number of processes of the command, and disable core files. `process` is the bubblewrap
        process, from which the command inherits the limits. On success, return None. On failure, return the report
        that the supervisor sends: its kind and its number (see `messages.py`).

        If `max_processes` is None, do nothing. If bubblewrap has already ended, return None, because the supervisor
        reports the end of bubblewrap.
        """
        if self._max_processes is None:
            return None
        try:
            for limit, most in ((resource.RLIMIT_NPROC, self._max_processes), (resource.RLIMIT_CORE, 0)):
                resource.prlimit(process, limit, (most, most))
        except ProcessLookupError:
            pass
        except (OSError, ValueError) as error:
            return UNLIMITED, getattr(error, "errno", None) or errno.EINVAL
        return None

    def _open(self) -> None:
        try:
            self._gate.send(b"\0")
        except OSError:
            pass  # bubblewrap has ended
        self._gate.close()


def _is_hidden(process: str) -> bool:
    """Return whether a process exists but is not visible in `/proc`. This happens if `/proc` hides the processes of
    other users.
    """
    if os.path.exists(f"/proc/{process}"):
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _escaped(path: bytes) -> bytes:
    for byte in ESCAPED:
        path = path.replace(byte, b"\\%03o" % ord(byte))
    return path


def _prefixes(path: bytes) -> Iterator[bytes]:
    """Yield the root, each directory above a path, and the path itself."""
    yield b"/"
    at = 0
    while path != b"/" and at >= 0:
        at = path.find(b"/", at + 1)
        yield path if at < 0 else path[:at]
