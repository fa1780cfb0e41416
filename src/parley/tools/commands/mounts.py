"""What a launcher has mounted: compared with what it was to mount, before its command runs.

Needs the standard library alone. A launcher goes by paths, and somebody else may put a link on their way
while it does. The kernel knows what was mounted where, and says so in words that come from no link. Why
that will do: docs/decisions/mounts-are-looked-at.md.
"""

from __future__ import annotations

import errno
import os
import time

from .messages import MOVED, UNSEEN

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from typing import Final

    from .messages import Laid

__all__ = ["Held", "Plan", "Table"]

SETTLED: Final = (b"/", b"/dev")
"""Where nobody else can put a link. A launcher makes its new root the root when all mounts are made: when it
has these there, the others are where they will be."""
OWN: Final = (b"tmpfs", b"proc")
"""The kinds of file systems that a launcher makes for a command."""
ESCAPED: Final = (b"\\", b" ", b"\t", b"\n")
"""What the kernel writes as a backslash and three digits. The backslash is to be replaced first."""
NAMELESS: Final = b"nfs"
"""How file systems are called that do not say which of their directories is mounted: they say `/`."""
SAID_BYTES: Final = 4096
"""More than a launcher says before it waits."""
TABLE_BYTES: Final = 64 * 1024
ENDED: Final = (errno.EINVAL, errno.ESRCH)
"""What the kernel answers for a process that is dead and not yet buried."""
PATIENCE_SECONDS: Final = 5.0
"""A launcher needs some milliseconds. One that is not ready by then is stuck, or its mounts are not as we know."""
SHARE: Final = 4
"""A launcher is left alone for one part in so many of the time that it has taken, so that it is late by no more."""
PAUSE_MILLISECONDS: Final = (1, 50)
"""The least and the most of that."""


class Mount:
    """One line of a table."""

    __slots__ = ("device", "number", "parent", "point", "root", "type", "writable")

    def __init__(self, line: bytes) -> None:
        words = line.split(b" ")
        self.number, self.parent, self.device, self.root, self.point = words[:5]
        self.writable = words[5].split(b",")[0] != b"ro"
        self.type = words[words.index(b"-", 6) + 1]


class Table:
    """The mounts that a process sees, by the text of its `mountinfo`. Paths are written as they are there."""

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
        """The mount that a path is in, and how many lie one upon the other right there; None without a root.

        As the kernel finds it: from the root on, at each directory what lies upon it.
        """
        here, count = self._root, 0
        if here is None:
            return None
        for place in _way(path):
            count = 1 if place == b"/" else 0
            while (upper := self._upon.get((here.number, place))) is not None:
                here, count = upper, count + 1
        return here, count


class Plan:
    """What a launcher is to mount, in the words in which the kernel will say it."""

    def __init__(self, laid: tuple[Laid, ...], ours: Table) -> None:
        """What it is told to lay upon what; and our own table, with whose mounts it begins.

        Raises:
            OSError: that says nothing of the root.
        """
        self._ours = ours
        self._wanted: dict[bytes, _Wanted] = {}
        for index, (place, source, may_write) in enumerate(laid):
            point = _escaped(place)
            before = self._wanted.get(point)
            self._wanted[point] = _Wanted(
                index=index,
                source=None if source is None else self._named(_escaped(source)),
                may_write=may_write,
                count=1 + (self._copied_to(point) if before is None else before.count),
            )

    def _named(self, source: bytes) -> tuple[bytes, bytes]:
        """How a directory or file of ours is called when it is mounted: its file system, and where it is there."""
        found = self._ours.at(source)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        mount, _ = found
        if mount.type.startswith(NAMELESS):
            return mount.device, b"/"
        within = mount.root.rstrip(b"/") + source[len(mount.point.rstrip(b"/")) :]
        return mount.device, within.rstrip(b"/") or b"/"

    def _copied_to(self, point: bytes) -> int:
        """How many mounts of ours are at a place when something is laid over it: copied with what it is in."""
        for folder in reversed(list(_way(point))[:-1]):
            if (above := self._wanted.get(folder)) is not None:
                found = None if above.source is None else self._ours.at(point)
                return 0 if found is None else found[1]
        return 0

    def is_carried_out(self, found: Table) -> bool:
        """Whether the launcher has made all mounts that it will make, be they the right ones or not."""
        return all(self._is_there(point, found, known=set()) for point in SETTLED)

    def first_amiss(self, found: Table, ours: Table) -> int | None:
        """The first that is not where it belongs; None: each is, and so none can be anywhere else.

        Our own table is one that was read after the launcher's. An older one may name file systems that are gone,
        and their numbers the kernel gives to new ones.
        """
        for point, wanted in self._wanted.items():
            if not self._is_there(point, found, known=ours.devices):
                return wanted.index
        return None

    def _is_there(self, point: bytes, found: Table, *, known: set[bytes]) -> bool:
        wanted, there = self._wanted.get(point), found.at(point)
        if wanted is None or there is None:
            return False
        mount, count = there
        if wanted.source is None:
            is_it = mount.type in OWN and mount.device not in known and mount.root == b"/"
        else:
            is_it = (mount.device, mount.root) == wanted.source
        return is_it and count == wanted.count and (wanted.may_write or not mount.writable)


class _Wanted:
    """What is to be found at a place."""

    __slots__ = ("count", "index", "may_write", "source")

    def __init__(self, *, index: int, source: tuple[bytes, bytes] | None, may_write: bool, count: int) -> None:
        self.index, self.source, self.may_write, self.count = index, source, may_write, count


def _text(process: str) -> bytes:
    file = os.open(f"/proc/{process}/mountinfo", os.O_RDONLY)
    try:
        text = b""
        while piece := os.read(file, TABLE_BYTES):
            text += piece
        return text
    finally:
        os.close(file)


class Held:
    """A launcher that waits with its command until its mounts have been looked at."""

    def __init__(
        self,
        reports: int,
        gate: socket.socket,
        laid: tuple[Laid, ...],
        *,
        read: Callable[[str], bytes] = _text,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Where it says which process waits; where that waits for a message; and what it is to mount.

        `read` has the text of the table of a process, or of ours: `self`.
        """
        self._reports, self._gate, self._laid = reports, gate, laid
        self._read, self._clock, self._began_at = read, clock, clock()
        self._plan: Plan | None = None
        self.waits = True
        self.said = b""
        """What was read of its reports."""
        self.refused: tuple[bytes, int] | None = None
        """Why the command is not to run, as a message."""

    @property
    def pause_milliseconds(self) -> int:
        """How long it is left alone before the next look."""
        least, most = PAUSE_MILLISECONDS
        return max(least, min(most, int((self._clock() - self._began_at) * 1000 / SHARE)))

    def look(self) -> None:
        """Let the command run, or say why it must not; nothing of both as long as there are mounts to come."""
        try:
            if self._plan is None:
                self._plan = Plan(self._laid, Table(self._read("self")))
            process = self._process()
            if process is not None and self._plan.is_carried_out(self._table_of(process)):
                # Once more: what was read may in parts be from before the last mount.
                amiss = self._plan.first_amiss(self._table_of(process), Table(self._read("self")))
                self.refused = None if amiss is None else (MOVED, amiss)
            elif self._clock() - self._began_at < PATIENCE_SECONDS:
                return
            else:
                self.refused = UNSEEN, errno.ETIMEDOUT
        except OSError as error:
            self.refused = UNSEEN, error.errno or errno.EINVAL
        self.waits = False
        if self.refused is None:
            self._open()

    def _process(self) -> str | None:
        """The one that waits; None while it is not known."""
        try:
            self.said += os.read(self._reports, SAID_BYTES)
        except BlockingIOError:
            pass
        told, end, _ = self.said.partition(b'"child-pid":')[2].partition(b"}")
        number = told.partition(b",")[0].strip()
        return number.decode() if end and number.isdigit() else None

    def _table_of(self, process: str) -> Table:
        """Empty if it has ended: then its launcher says why."""
        try:
            return Table(self._read(process))
        except OSError as error:
            if error.errno in ENDED or (error.errno == errno.ENOENT and not _is_hidden(process)):
                return Table(b"")
            raise

    def _open(self) -> None:
        try:
            self._gate.send(b"\0")
        except OSError:
            pass  # it has ended meanwhile
        self._gate.close()


def _is_hidden(process: str) -> bool:
    """Whether there is such a process, and `/proc` does not show it to us."""
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


def _way(path: bytes) -> Iterator[bytes]:
    """The root, each directory on the way to a path, and the path."""
    yield b"/"
    at = 0
    while path != b"/" and at >= 0:
        at = path.find(b"/", at + 1)
        yield path if at < 0 else path[:at]
