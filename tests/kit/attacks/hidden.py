"""Runs inside the command: attempts to read hidden files.

The hidden paths are a directory and a file outside the workspace, a directory in the workspace, and a directory
outside that the settings name by a link. All have the same content.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import subprocess
from typing import Final

from kit.attacks.attempts import NotPossible, World, attempt
from kit.attacks.calls import call

SUPERUSER: Final = "the superuser"
AT_FDCWD: Final = -100


def read(path: str, *, directory: int | None = None) -> None:
    expect(os.read(os.open(path, os.O_RDONLY, dir_fd=directory), 100))


def expect(found: bytes) -> None:
    if found != b"hidden words":
        raise NotPossible("something else is there")


@attempt()
def read_in_a_directory(world: World) -> None:
    read(f"{world.hidden}/key")


@attempt()
def read_a_file(world: World) -> None:
    read(world.hidden_file)


@attempt()
def read_in_a_directory_that_is_hidden_by_a_link(world: World) -> None:
    read(f"{world.hidden_by_link}/key")


@attempt()
def read_in_a_directory_of_the_workspace(world: World) -> None:
    read(f"{world.hidden_inside}/key")


@attempt()
def read_through_dots(world: World) -> None:
    read(f"{world.inside}/../{os.path.relpath(world.hidden, os.path.dirname(world.inside))}/key")


@attempt()
def read_through_the_root_of_proc(world: World) -> None:
    read(f"/proc/self/root{world.hidden}/key")


@attempt()
def read_through_the_root_of_the_server(world: World) -> None:
    read(f"/proc/{world.server}/root{world.hidden}/key")


@attempt()
def read_through_what_the_server_has_open(world: World) -> None:
    read(f"/proc/{world.server}/fd/{world.descriptors[2]}")


@attempt()
def read_what_the_server_has_open(world: World) -> None:
    expect(os.pread(world.descriptors[2], 100, 0))


@attempt()
def read_through_a_working_directory(world: World) -> None:
    os.chdir(os.path.dirname(world.hidden))
    read(f"/proc/self/cwd/{os.path.basename(world.hidden)}/key")


@attempt()
def read_through_a_link(world: World) -> None:
    read(f"{world.inside}/to-outside/hidden/key")


@attempt()
def read_through_a_link_of_its_own(world: World) -> None:
    os.symlink(f"{world.hidden}/key", f"{world.workplace}/own")
    read(f"{world.workplace}/own")


@attempt()
def read_through_a_hard_link_of_its_own(world: World) -> None:
    os.link(f"{world.hidden}/key", f"{world.workplace}/hard")
    read(f"{world.workplace}/hard")


@attempt()
def read_a_file_through_a_hard_link_of_its_own(world: World) -> None:
    os.link(world.hidden_file, f"{world.workplace}/hard")
    read(f"{world.workplace}/hard")


@attempt()
def read_in_the_workspace_through_a_hard_link_of_its_own(world: World) -> None:
    os.link(f"{world.hidden_inside}/key", f"{world.workplace}/hard")
    read(f"{world.workplace}/hard")


@attempt()
def move_out_of_the_directory(world: World) -> None:
    os.rename(f"{world.hidden_inside}/key", f"{world.workplace}/taken")
    try:
        read(f"{world.workplace}/taken")
    finally:
        os.rename(f"{world.workplace}/taken", f"{world.hidden_inside}/key")


@attempt()
def move_the_directory(world: World) -> None:
    os.rename(world.hidden_inside, f"{world.workplace}/taken")
    try:
        read(f"{world.workplace}/taken/key")
    finally:
        os.rename(f"{world.workplace}/taken", world.hidden_inside)


@attempt()
def move_what_is_around_the_directory(world: World) -> None:
    around = os.path.dirname(world.hidden_inside)
    os.rename(around, f"{world.workplace}/taken")
    try:
        read(f"{world.workplace}/taken/{os.path.basename(world.hidden_inside)}/key")
    finally:
        os.rename(f"{world.workplace}/taken", around)


@attempt()
def open_again_what_was_opened_by_path_only(world: World) -> None:
    read(f"/proc/self/fd/{os.open(world.hidden_file, os.O_PATH)}")


@attempt()
def read_below_what_was_opened_by_path_only(world: World) -> None:
    read("key", directory=os.open(world.hidden, os.O_PATH | os.O_DIRECTORY))


@attempt()
def read_below_a_parent_that_was_opened_by_path_only(world: World) -> None:
    parent, name = os.path.split(world.hidden)
    read(f"{name}/key", directory=os.open(parent, os.O_PATH | os.O_DIRECTORY))


@attempt(needs=f"{SUPERUSER}, with leave to open disks")
def open_the_disk_that_it_is_on(world: World) -> None:
    disk = os.stat(world.hidden).st_dev
    for name in os.listdir("/dev"):
        found = os.lstat(f"/dev/{name}")
        if stat.S_ISBLK(found.st_mode) and found.st_rdev == disk:
            os.close(os.open(f"/dev/{name}", os.O_RDONLY))
            return
    raise NotPossible("it has no node")


@attempt(needs=SUPERUSER)
def open_by_handle(world: World) -> None:
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.c_uint.from_buffer(handle).value = 128
    mount = ctypes.c_int()
    path = f"{world.hidden}/key".encode()
    call("name_to_handle_at", AT_FDCWD, path, handle, ctypes.byref(mount), 0)
    expect(os.read(call("open_by_handle_at", os.open(world.outside, os.O_RDONLY), handle, os.O_RDONLY), 100))


@attempt()
def map_it(world: World) -> None:
    held = os.open(world.hidden_file, os.O_RDONLY)
    try:
        expect(mmap.mmap(held, 0, prot=mmap.PROT_READ)[:])
    except ValueError as empty:
        raise NotPossible("there is nothing in it") from empty


@attempt()
def run_it(world: World) -> None:
    expect(subprocess.run([f"{world.hidden}/program"], stdout=subprocess.PIPE, check=False).stdout)


@attempt(needs=SUPERUSER)
def take_away_what_hides_it(world: World) -> None:
    # Without a sandbox it is not hidden, so a mount is made first.
    if os.path.exists(f"{world.hidden}/key"):
        call("mount", b"none", world.hidden.encode(), b"tmpfs", 0, None)
    call("umount2", world.hidden.encode(), 2)
    read(f"{world.hidden}/key")
