"""Runs inside the command: attempts to create a set-user-id or set-group-id file, or one with capabilities, in the
workspace."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
import tarfile
from io import BytesIO
from typing import Final

from kit.attacks.attempts import NotPossible, World, attempt
from kit.attacks.calls import call

AT_FDCWD: Final = -100
AT_SYMLINK_FOLLOW: Final = 0x400
SET_USER, SET_GROUP, SET_BOTH = 0o4755, 0o2755, 0o6755
UPPER: Final = 1 << 32
"""A bit that the kernel ignores in a mode."""
X86: Final = "x86-64"


def new(world: World) -> str:
    """Create a program in the workspace and return its path."""
    path = f"{world.workplace}/program"
    with open(path, "xb") as file:
        file.write(b"#!/bin/sh\nid\n")
    return path


def must_be_special(path: str) -> None:
    if not os.lstat(path).st_mode & 0o6000:
        raise NotPossible("the file has no special bits")


def run(*argv: str) -> None:
    ended = subprocess.run(argv, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, capture_output=True, check=False)
    if ended.returncode:
        raise NotPossible(ended.stderr.decode().strip())


@attempt()
def chmod_set_user_id(world: World) -> None:
    os.chmod(path := new(world), SET_USER)
    must_be_special(path)


@attempt()
def chmod_set_group_id(world: World) -> None:
    os.chmod(path := new(world), SET_GROUP)
    must_be_special(path)


@attempt()
def chmod_set_both(world: World) -> None:
    os.chmod(path := new(world), SET_BOTH)
    must_be_special(path)


@attempt(needs=X86)
def chmod_by_the_oldest_call(world: World) -> None:
    call("chmod", (path := new(world)).encode(), SET_USER)
    must_be_special(path)


@attempt()
def chmod_by_descriptor(world: World) -> None:
    path = new(world)
    os.fchmod(os.open(path, os.O_RDONLY), SET_USER)
    must_be_special(path)


@attempt()
def chmod_below_a_directory(world: World) -> None:
    path = new(world)
    os.chmod("program", SET_USER, dir_fd=os.open(world.workplace, os.O_RDONLY))
    must_be_special(path)


@attempt()
def chmod_through_proc(world: World) -> None:
    path = new(world)
    os.chmod(f"/proc/self/fd/{os.open(path, os.O_PATH)}", SET_USER)
    must_be_special(path)


@attempt()
def chmod_with_bits_that_the_kernel_drops(world: World) -> None:
    path = new(world)
    call("fchmodat", AT_FDCWD, path.encode(), SET_USER | UPPER | 1 << 16)
    must_be_special(path)


@attempt(needs="fchmodat2, Linux 6.6")
def chmod_by_the_newest_call(world: World) -> None:
    call("fchmodat2", AT_FDCWD, (path := new(world)).encode(), SET_USER, 0)
    must_be_special(path)


@attempt()
def create_with_open(world: World) -> None:
    path = f"{world.workplace}/new"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, SET_USER))
    must_be_special(path)


@attempt()
def create_with_open_and_bits_that_the_kernel_drops(world: World) -> None:
    path = f"{world.workplace}/new"
    call("openat", AT_FDCWD, path.encode(), os.O_CREAT | os.O_WRONLY | UPPER, SET_GROUP | UPPER)
    must_be_special(path)


@attempt(needs=X86)
def create_with_the_oldest_open(world: World) -> None:
    path = f"{world.workplace}/new"
    call("open", path.encode(), os.O_CREAT | os.O_WRONLY, SET_USER)
    must_be_special(path)


@attempt(needs=X86)
def create_with_creat(world: World) -> None:
    path = f"{world.workplace}/new"
    call("creat", path.encode(), SET_USER)
    must_be_special(path)


@attempt(needs="openat2, Linux 5.6")
def create_with_openat2(world: World) -> None:
    path = f"{world.workplace}/new"
    how = struct.pack("=QQQ", os.O_CREAT | os.O_WRONLY, SET_USER, 0)
    call("openat2", AT_FDCWD, path.encode(), how, len(how))
    must_be_special(path)


@attempt(needs="a file system with files without a name")
def create_without_a_name_and_link(world: World) -> None:
    path = f"{world.workplace}/new"
    unnamed = os.open(world.workplace, os.O_TMPFILE | os.O_RDWR, SET_USER)
    call("linkat", AT_FDCWD, f"/proc/self/fd/{unnamed}".encode(), AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW)
    must_be_special(path)


@attempt()
def make_a_node(world: World) -> None:
    path = f"{world.workplace}/new"
    os.mknod(path, stat.S_IFREG | SET_USER)
    must_be_special(path)


@attempt(needs=X86)
def make_a_node_by_the_older_call(world: World) -> None:
    path = f"{world.workplace}/new"
    call("mknod", path.encode(), stat.S_IFREG | SET_GROUP, 0)
    must_be_special(path)


@attempt()
def install_with_a_mode(world: World) -> None:
    path = f"{world.workplace}/installed"
    run("install", "-m", "6755", new(world), path)
    must_be_special(path)


@attempt()
def chmod_by_symbols(world: World) -> None:
    run("chmod", "u+s", path := new(world))
    must_be_special(path)


@attempt()
def let_a_directory_pass_on_its_group(world: World) -> None:
    os.chmod(world.workplace, SET_GROUP)
    must_be_special(world.workplace)


@attempt()
def unpack_an_archive_with_its_modes(world: World) -> None:
    packed = f"{world.workplace}/packed.tar"
    with tarfile.open(packed, "w") as archive:
        member = tarfile.TarInfo("unpacked")
        member.mode, member.size = SET_USER, 3
        archive.addfile(member, BytesIO(b"id\n"))
    run("tar", "-xpf", packed, "-C", world.workplace)
    must_be_special(f"{world.workplace}/unpacked")


@attempt(needs="a set-user-id program of the user's own")
def copy_a_program_of_the_superuser_with_its_mode(world: World) -> None:
    found = shutil.which("su", path="/usr/bin:/bin")
    if found is None or os.getuid():
        raise NotPossible("there is none")
    run("cp", "-p", found, path := f"{world.workplace}/su")
    must_be_special(path)


@attempt(needs="the superuser, and a file system with capabilities of files")
def give_a_file_capabilities(world: World) -> None:
    # VFS_CAP_REVISION_2, effective: CAP_DAC_OVERRIDE.
    os.setxattr(new(world), "security.capability", struct.pack("<5I", 0x02000001, 1 << 1, 0, 0, 0))


@attempt(needs="the superuser, and a file system with capabilities of files")
def give_a_file_capabilities_within_a_namespace(world: World) -> None:
    # VFS_CAP_REVISION_3, whose last word is the user that is the superuser of the namespace.
    os.setxattr(new(world), "security.capability", struct.pack("<6I", 0x03000001, 1 << 1, 0, 0, 0, os.getuid()))
