"""Whether a directory can be a home: made when it is not there, on a disk of this computer."""

from __future__ import annotations

import os
import sys
from typing import Final

from parley.errors import BadHome
from parley.os_errors import os_detail

__all__ = ["file_system", "prepare_home", "sync_directory"]

SHARED: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph",
        "fuse.curlftpfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
    }
)
"""File systems of several computers, or of a computer and its guest: their processes would not see each
other's locks and shared memory. Others by FUSE are on this computer as a rule, and are allowed."""


def prepare_home(home: str) -> None:
    """Make it where it is missing.

    Raises:
        BadHome: it cannot be made, or is on a network file system.
    """
    try:
        made = not os.path.isdir(home)
        os.makedirs(home, mode=0o700, exist_ok=True)
        if made:
            sync_directory(os.path.dirname(os.path.abspath(home)))
        device = os.stat(home).st_dev
    except OSError as error:
        raise BadHome(home, f"the home cannot be made: {os_detail(error)}") from error
    found = file_system(_mounts(), os.major(device), os.minor(device))
    if found in SHARED:
        raise BadHome(
            home, f"conversations cannot be kept on a network file system ({found}); set PARLEY_HOME to a local one"
        )


def file_system(mounts: str, major: int, minor: int) -> str | None:
    """The type of the file system on a device, from the text of /proc/self/mountinfo."""
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split(" ")[2:3] == [f"{major}:{minor}"]:
            return source.split(" ")[0]
    return None


def sync_directory(path: str) -> None:
    """Make sure that the names in it survive a power cut, where we may read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _mounts() -> str:
    """Empty where the system does not tell."""
    if sys.platform != "linux":
        return ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
