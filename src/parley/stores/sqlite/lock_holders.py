"""Finds and describes the process that holds a lock on a file, for error messages.

Linux lists all locks in /proc/locks. The process that acquired an `flock` may have exited, while a process that
inherited the open file still holds the lock; /proc/PID/fdinfo shows the inheriting process. Processes of other PID
namespaces cannot be named. The current process is never named, because it is waiting for the lock. The description
contains the name of the program but not its arguments, because arguments may contain secrets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

from parley.wire.text import replace_surrogates

__all__ = ["UNKNOWN", "holder_in", "holder_of"]

UNKNOWN: Final = "another process"

MAX_READS: Final = 10
"""The maximum number of times that /proc/locks is read to find a lock. One read may miss the lock: the kernel
returns the list in pages, and may skip a line if a lock is released between two pages.
"""


def holder_of(*paths: str) -> str | None:
    """Return a description of another process that holds an exclusive lock on one of the files at `paths`.

    Return `UNKNOWN` if another process holds a lock but cannot be named. Return None if no lock is found or the
    system does not report locks.
    """
    inodes = set(_inodes(paths))
    found = (holder_in(_read("/proc/locks") or "", inodes) for _ in range(MAX_READS))
    return next(filter(None, found), None)


def holder_in(locks: str, inodes: set[int]) -> str | None:
    """Return the same value as `holder_of`. `locks` is the content of /proc/locks, and `inodes` contains the inode
    numbers of the files.
    """
    holders = (_holder(line, inodes) for line in locks.splitlines())
    pids = [pid for pid in holders if pid is not None and pid != os.getpid()]
    if not pids:
        return None
    for pid in pids:
        if (described := _described(pid)) is not None:
            return described
    return next(filter(None, map(_described, _inheritors(inodes))), UNKNOWN)


def _inodes(paths: tuple[str, ...]) -> Iterator[int]:
    for path in paths:
        try:
            yield os.stat(path).st_ino
        except OSError:
            continue


def _holder(line: str, inodes: set[int]) -> int | None:
    """Return the PID in a line such as `1: FLOCK ADVISORY WRITE 4711 08:01:5678 0 EOF`; None if the line is about
    another file or is not about an exclusive lock that a process holds.

    The device is not compared, because on overlayfs and btrfs it differs from the device that `stat` returns. A
    line with `->` describes a process that is waiting for a lock.
    """
    fields = line.split()
    if len(fields) < 6 or fields[1] == "->" or fields[3] != "WRITE":
        return None
    inode = fields[5].rpartition(":")[2]
    if not inode.isdecimal() or int(inode) not in inodes:
        return None
    return int(fields[4])


def _inheritors(inodes: set[int]) -> Iterator[int]:
    """Yield the PIDs of the processes that have a descriptor with a lock on one of the files in `inodes`."""
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            descriptors = os.listdir(f"/proc/{name}/fdinfo")
        except OSError:
            continue
        for descriptor in descriptors:
            info = _read(f"/proc/{name}/fdinfo/{descriptor}") or ""
            locks = (line.removeprefix("lock:") for line in info.splitlines() if line.startswith("lock:"))
            if any(_holder(line, inodes) is not None for line in locks):
                yield int(name)
                break


def _described(pid: int) -> str | None:
    """Return a description such as `process 4711 (flock, running since 2026-11-16 09:12:03)`; None if no process
    has the id `pid`.
    """
    stat = _read(f"/proc/{pid}/stat") if pid > 0 else None
    if stat is None:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    try:
        since = time.localtime(_booted_at() + int(rest.split()[19]) / os.sysconf("SC_CLK_TCK"))
    except (ValueError, IndexError):
        return f"process {pid} ({_plain(name)})"
    return f"process {pid} ({_plain(name)}, running since {time.strftime('%Y-%m-%d %H:%M:%S', since)})"


def _plain(name: str) -> str:
    return replace_surrogates("".join(letter if letter.isprintable() else "?" for letter in name))


def _booted_at() -> int:
    """Return the boot time of the system, in seconds since the epoch.

    Raises:
        ValueError: the system does not report its boot time.
    """
    for line in (_read("/proc/stat") or "").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    raise ValueError("no btime")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
