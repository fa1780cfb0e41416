"""Describes the process that holds a lock on a file, for error messages.

Linux lists all locks in /proc/locks. The process that took an `flock` may have ended and left the lock to a process
that inherited the open file; /proc/PID/fdinfo shows which one. Processes of other PID namespaces cannot be named.
This process is never named: it asks because it waits. Only the name of a program is shown: its arguments may
contain secrets.
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
"""How often /proc/locks is read. The kernel returns it in pages. If locks are released between two pages, the next
page lacks as many of the others."""


def holder_of(*paths: str) -> str | None:
    """Describe the other process that holds an exclusive lock on one of these files.

    `UNKNOWN` where there is one that cannot be named, and None where no lock is found or the system does not tell.
    """
    inodes = set(_inodes(paths))
    found = (holder_in(_read("/proc/locks") or "", inodes) for _ in range(MAX_READS))
    return next(filter(None, found), None)


def holder_in(locks: str, inodes: set[int]) -> str | None:
    """As `holder_of`, for the text of /proc/locks and the inodes of the files."""
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
    """The PID in a line such as `1: FLOCK  ADVISORY  WRITE 4711 08:01:5678 0 EOF`, if it is about one of the files.

    The device is not compared: on overlay and btrfs it differs from that of `stat`. A line with `->` is a waiter.
    """
    fields = line.split()
    if len(fields) < 6 or fields[1] == "->" or fields[3] != "WRITE":
        return None
    inode = fields[5].rpartition(":")[2]
    if not inode.isdecimal() or int(inode) not in inodes:
        return None
    return int(fields[4])


def _inheritors(inodes: set[int]) -> Iterator[int]:
    """Processes with an open file that has one of these locks."""
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            descriptors = os.listdir(f"/proc/{name}/fdinfo")
        except OSError:
            continue
        for descriptor in descriptors:
            said = _read(f"/proc/{name}/fdinfo/{descriptor}") or ""
            locks = (line.removeprefix("lock:") for line in said.splitlines() if line.startswith("lock:"))
            if any(_holder(line, inodes) is not None for line in locks):
                yield int(name)
                break


def _described(pid: int) -> str | None:
    """`process 4711 (flock, running since 2026-11-16 09:12:03)`; None: there is no such process."""
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
    """In seconds since the epoch. Raises ValueError."""
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
