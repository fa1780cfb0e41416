"""The mounts that the kernel reports, compared with the mounts that a launcher must make."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from parley.tools.commands.messages import MOUNT_MISMATCH, MOUNTS_UNREADABLE, UNLIMITED
from parley.tools.commands.mounts import ExpectedMounts, HeldLauncher, MountTable

Line = tuple[int, int, str, str, str, str]
"""A mount: its number, its parent, its device, its path in the file system, its mount point, and its options."""

OURS: Final[tuple[Line, ...]] = (
    (20, 1, "8:1", "/", "/", "rw"),
    (21, 20, "0:5", "/", "/dev", "rw"),
    (22, 20, "0:6", "/", "/proc", "rw"),
    (23, 20, "8:2", "/@home", "/home", "rw"),
    (24, 23, "8:3", "/", "/home/u/disk", "rw"),
    (25, 20, "0:7", "/", "/net", "rw"),
)
ALWAYS: Final = ((b"/", b"/", False), (b"/dev", None, False))
DEV: Final = (49, 41, "0:90", "/", "/dev", "ro")
COPIES: Final[tuple[Line, ...]] = tuple(
    (number + 20, parent + 20, device, root, point, "ro") for number, parent, device, root, point, _ in OURS
)
"""The mounts of a launcher that has mounted `/` read-only."""
KINDS: Final = {"0:5": "devtmpfs", "0:6": "proc", "0:7": "nfs4", "0:80": "tmpfs", "0:90": "tmpfs", "0:91": "tmpfs"}


def text(lines: Iterable[Line]) -> bytes:
    return "".join(
        f"{number} {parent} {device} {root} {point} {how},relatime shared:1 - {KINDS.get(device, 'ext4')} x rw\n"
        for number, parent, device, root, point, how in lines
    ).encode()


def table(lines: Iterable[Line]) -> MountTable:
    return MountTable(text(lines))


def mismatch(
    laid: tuple[tuple[bytes, bytes | None, bool], ...], *found: Line, ours: tuple[Line, ...] = OURS
) -> int | None:
    plan = ExpectedMounts((*ALWAYS, *laid), table(ours))
    seen = table((*COPIES, DEV, *found))
    assert plan.are_complete(seen)
    return plan.first_mismatch(seen, table(ours))


BOUND: Final = ((b"/home/u/w", b"/home/u/w", True),)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((50, 43, "8:2", "/@home/u/w", "/home/u/w", "rw"), None),
        ((50, 43, "8:2", "/@home/u/w", "/home/u/w", "ro"), None),
        ((50, 43, "8:2", "/@home/u/other", "/home/u/w", "rw"), 2),
        ((50, 43, "8:1", "/@home/u/w", "/home/u/w", "rw"), 2),
        ((50, 43, "8:2", "/@home/u/w//deleted", "/home/u/w", "rw"), 2),
        ((50, 43, "8:2", "/@home/u/w", "/home/u/other", "rw"), 2),
        ((50, 40, "8:2", "/@home/u/w", "/home/u/w", "rw"), 2),  # hidden by the mount at /home
        ((50, 44, "8:2", "/@home/u/w", "/home/u/w", "rw"), 2),
    ],
)
def test_a_mount_is_known_by_what_it_shows_and_where(found: Line, expected: int | None) -> None:
    assert mismatch(BOUND, found) == expected


def test_a_read_only_mount_must_be_read_only() -> None:
    laid = ((b"/home/u/w", b"/home/u/w", False),)

    assert mismatch(laid, (50, 43, "8:2", "/@home/u/w", "/home/u/w", "rw")) == 2
    assert mismatch(laid, (50, 43, "8:2", "/@home/u/w", "/home/u/w", "ro")) is None


def test_a_copy_of_a_disk_of_ours_does_not_pass_for_the_disk_laid_upon_it() -> None:
    laid = ((b"/home/u", b"/home/u", True), (b"/home/u/disk", b"/home/u/disk", True))
    around: Line = (50, 43, "8:2", "/@home/u", "/home/u", "rw")
    copy: Line = (51, 50, "8:3", "/", "/home/u/disk", "rw")

    assert mismatch(laid, around, copy, (52, 51, "8:3", "/", "/home/u/disk", "rw")) is None
    assert mismatch(laid, around, copy) == 3
    assert mismatch(laid, around, copy, (52, 20, "8:3", "/", "/home/u/disk", "rw")) == 3


def test_a_file_system_of_its_own_is_none_of_ours() -> None:
    laid = ((b"/home/u/keys", None, False),)

    assert mismatch(laid, (50, 43, "0:91", "/", "/home/u/keys", "ro")) is None
    assert (
        mismatch(laid, (50, 43, "0:6", "/", "/home/u/keys", "ro")) == 2
    )  # the device of another file system of this process
    assert mismatch(laid, (50, 43, "8:9", "/", "/home/u/keys", "ro")) == 2  # a device of a disk
    assert mismatch(laid, (50, 43, "0:91", "/in", "/home/u/keys", "ro")) == 2


def test_a_new_file_system_has_no_mounts_of_ours_below() -> None:
    laid = ((b"/home/u", None, False), (b"/home/u/disk", b"/home/u/disk", True))
    hidden: Line = (50, 43, "0:91", "/", "/home/u", "ro")

    assert mismatch(laid, hidden, (51, 50, "8:3", "/", "/home/u/disk", "rw")) is None
    assert mismatch(laid, hidden, (51, 43, "8:3", "/", "/home/u/disk", "rw")) == 3


def test_a_mount_point_may_be_covered_twice() -> None:
    laid = ((b"/home/u", None, True), (b"/home/u", b"/home/u", True))
    lower: Line = (50, 43, "0:91", "/", "/home/u", "rw")

    assert mismatch(laid, lower, (51, 50, "8:2", "/@home/u", "/home/u", "rw")) is None
    assert mismatch(laid, (51, 43, "8:2", "/@home/u", "/home/u", "rw")) == 3


def test_of_a_disk_in_the_network_the_kernel_says_only_which_it_is() -> None:
    laid = ((b"/net/u/w", b"/net/u/w", True),)

    assert mismatch(laid, (50, 45, "0:7", "/", "/net/u/w", "rw")) is None
    assert mismatch(laid, (50, 45, "8:1", "/", "/net/u/w", "rw")) == 2


def test_a_covered_mount_is_not_taken_for_the_visible_one() -> None:
    ours = (*OURS, (26, 20, "8:9", "/", "/mnt/a", "rw"), (27, 20, "8:8", "/", "/mnt", "rw"))
    copies: tuple[Line, ...] = ((46, 40, "8:9", "/", "/mnt/a", "ro"), (47, 40, "8:8", "/", "/mnt", "ro"))
    laid = ((b"/mnt/a", b"/mnt/a", True),)

    assert mismatch(laid, *copies, (50, 47, "8:8", "/a", "/mnt/a", "rw"), ours=ours) is None
    assert mismatch(laid, *copies, (50, 46, "8:9", "/", "/mnt/a", "rw"), ours=ours) == 2


def test_names_are_written_as_the_kernel_writes_them() -> None:
    name = b"a b\tc\nd\\e\\040\xff"
    written = rb"a\040b\011c\012d\134e\134040" + b"\xff"
    seen = MountTable(
        b"40 1 8:1 / / ro - ext4 x rw\n41 40 0:5 / /dev ro - ext4 x rw\n42 41 0:90 / /dev ro - tmpfs x rw\n"
        b"43 40 8:1 /%b /%b rw - ext4 x rw\n" % (written, written)
    )
    ours = MountTable(b"20 1 8:1 / / rw - ext4 x rw\n21 20 0:5 / /dev rw - ext4 x rw\n")

    assert ExpectedMounts((*ALWAYS, (b"/" + name, b"/" + name, True)), ours).first_mismatch(seen, ours) is None


ON_THE_WAY: Final[dict[str, tuple[Line, ...]]] = {
    "nothing": (),
    "what it began with": OURS,
    "a root for itself": (
        (60, 1, "0:80", "/", "/", "rw"),
        (61, 60, "0:80", "/newroot", "/newroot", "rw"),
        (62, 61, "8:1", "/", "/newroot", "ro"),
        (63, 62, "0:90", "/", "/newroot/dev", "ro"),
    ),
    "that root still upon the new one": (*COPIES, DEV, (60, 40, "0:80", "/", "/", "rw")),
}


@pytest.mark.parametrize("found", ON_THE_WAY.values(), ids=ON_THE_WAY)
def test_a_launcher_that_has_mounts_to_make_is_left_alone(found: tuple[Line, ...]) -> None:
    assert not ExpectedMounts((*ALWAYS, *BOUND), table(OURS)).are_complete(table(found))


def test_all_may_be_written_to() -> None:
    copies = [(number, parent, device, root, point, "rw") for number, parent, device, root, point, _ in COPIES]
    plan = ExpectedMounts(((b"/", b"/", True), (b"/dev", None, False)), table(OURS))

    assert not plan.are_complete(table(OURS))
    assert plan.are_complete(table((*copies, DEV)))


def test_a_root_that_is_an_inner_directory_of_a_disk_is_the_root() -> None:
    ours: tuple[Line, ...] = ((20, 1, "8:1", "/sub", "/", "rw"), (21, 20, "0:5", "/", "/dev", "rw"))
    copies: tuple[Line, ...] = ((40, 1, "8:1", "/sub", "/", "ro"), (41, 40, "0:5", "/", "/dev", "ro"), DEV)
    plan = ExpectedMounts((*ALWAYS, (b"/w", b"/w", True)), table(ours))

    assert plan.first_mismatch(table((*copies, (50, 40, "8:1", "/sub/w", "/w", "rw"))), table(ours)) is None


def test_nothing_can_be_planned_where_the_kernel_says_nothing_of_the_root() -> None:
    with pytest.raises(FileNotFoundError):
        ExpectedMounts(ALWAYS, table(OURS[1:]))


# --- checks of a launcher ------------------------------------------------------------------------


class Launcher:
    """A launcher with process id 4711 and only the default mounts."""

    def __init__(self, *, ours: list[bytes], its: bytes, max_processes: int | None = None) -> None:
        """Create a launcher.

        `ours` are the successive mount tables of this process, and `its` is the mount table of the launcher.
        """
        self.now = 0.0
        self.reports, theirs = os.pipe()
        os.write(theirs, b'{ "child-pid": 4711 }')
        os.close(theirs)
        self.inner, self.gate = socket.socketpair(type=socket.SOCK_DGRAM)
        self.gate.setblocking(False)
        self.held = HeldLauncher(
            self.reports,
            self.inner,
            ALWAYS,
            max_processes=max_processes,
            read=lambda process: ours.pop(0) if process == "self" else its,
            clock=lambda: self.now,
        )

    def is_let_go(self) -> bool:
        try:
            return self.gate.recv(1) == b"\0"
        except BlockingIOError:
            return False

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.reports)
        self.inner.close()
        self.gate.close()


USED: Final[Line] = (26, 20, "0:90", "/", "/mnt", "rw")
"""A file system of this process with the device number that the `/dev` of a launcher also has."""


def test_the_number_of_a_file_system_that_was_unmounted_meanwhile_may_be_that_of_a_new_one() -> None:
    with Launcher(ours=[text((*OURS, USED)), text(OURS)], its=text((*COPIES, DEV))) as launcher:
        launcher.held.check()

        assert (launcher.held.waits, launcher.held.refused, launcher.is_let_go()) == (False, None, True)


def test_a_file_system_that_is_still_ours_is_not_a_new_one() -> None:
    with Launcher(ours=[text(OURS), text((*OURS, USED))], its=text((*COPIES, DEV))) as launcher:
        launcher.held.check()

        assert (launcher.held.waits, launcher.held.refused, launcher.is_let_go()) == (
            False,
            (MOUNT_MISMATCH, 1),
            False,
        )


def test_a_launcher_that_never_gets_ready_is_refused_after_some_seconds() -> None:
    with Launcher(ours=[text(OURS)], its=text(OURS)) as launcher:
        launcher.now = 4.9
        launcher.held.check()
        waited = launcher.held.waits
        launcher.now = 5.0
        launcher.held.check()

        assert (waited, launcher.held.waits, launcher.held.refused) == (
            True,
            False,
            (MOUNTS_UNREADABLE, errno.ETIMEDOUT),
        )
        assert not launcher.is_let_go()


@pytest.mark.parametrize(
    ("error", "refused", "is_let_go"),
    [
        (PermissionError(errno.EPERM, "not allowed"), (UNLIMITED, errno.EPERM), False),
        (ValueError("too many"), (UNLIMITED, errno.EINVAL), False),
        (ProcessLookupError(errno.ESRCH, "no such process"), None, True),
    ],
)
def test_a_launcher_whose_processes_cannot_be_limited_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: Exception, refused: tuple[bytes, int] | None, is_let_go: bool
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(resource, "prlimit", fail)
    with Launcher(ours=[text(OURS), text(OURS)], its=text((*COPIES, DEV)), max_processes=512) as launcher:
        launcher.held.check()

        assert (launcher.held.refused, launcher.is_let_go()) == (refused, is_let_go)


def test_a_launcher_that_takes_long_is_looked_at_less_often() -> None:
    with Launcher(ours=[], its=b"") as launcher:
        pauses = [launcher.held.pause_milliseconds for launcher.now in (0.0, 0.004, 0.02, 0.1, 1.0)]

    assert pauses == [1, 1, 5, 25, 50]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Prevent this process from opening files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_launcher_is_refused_whose_mounts_cannot_be_looked_at() -> None:
    reports, theirs = os.pipe()
    ours, gate = socket.socketpair(type=socket.SOCK_DGRAM)
    with ours, gate:
        held = HeldLauncher(reports, ours, ALWAYS)
        with no_descriptors():
            held.check()
        gate.setblocking(False)
        with pytest.raises(BlockingIOError):
            gate.recv(1)
    os.close(reports)
    os.close(theirs)

    assert (held.waits, held.refused) == (False, (MOUNTS_UNREADABLE, errno.EMFILE))
