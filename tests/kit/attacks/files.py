"""Runs inside the command: attempts to write, create, delete, rename, link and truncate files outside."""

from __future__ import annotations

import ctypes
import os
import stat
from typing import Final

from kit.attacks.attempts import NotPossible, World, attempt
from kit.attacks.calls import call

AT_FDCWD: Final = -100
RENAME_EXCHANGE: Final = 2
FOLLOW: Final = 0x400
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REMOUNT, MS_REC = 4096, 32, 16384
SUPERUSER: Final = "the superuser"
NAMESPACES: Final = "user namespaces"


def overwrite(path: str, *, directory: int | None = None) -> None:
    written = os.open(path, os.O_WRONLY, dir_fd=directory)
    os.write(written, b"lost")
    os.close(written)


# --- spellings of a path ----------------------------------------------------------------


@attempt()
def write_by_its_path(world: World) -> None:
    overwrite(world.victim)


@attempt()
def write_by_a_relative_path(world: World) -> None:
    os.chdir(world.workplace)
    overwrite(os.path.relpath(world.victim, world.workplace))


@attempt()
def write_through_dots_behind_the_workspace(world: World) -> None:
    overwrite(f"{world.inside}/../{os.path.relpath(world.victim, os.path.dirname(world.inside))}")


@attempt()
def write_through_the_root_of_proc(world: World) -> None:
    overwrite(f"/proc/self/root{world.victim}")


@attempt()
def write_through_the_root_of_the_thread(world: World) -> None:
    overwrite(f"/proc/thread-self/root{world.victim}")


@attempt()
def write_through_the_root_of_the_server(world: World) -> None:
    overwrite(f"/proc/{world.server}/root{world.victim}")


@attempt()
def write_through_the_working_directory_of_proc(world: World) -> None:
    os.chdir(world.workplace)
    overwrite(f"/proc/self/cwd/{os.path.relpath(world.victim, world.workplace)}")


@attempt()
def write_in_a_working_directory_outside(world: World) -> None:
    os.chdir(world.folder)
    overwrite("victim")


# --- links ------------------------------------------------------------------------------


@attempt()
def write_through_a_link_that_was_there(world: World) -> None:
    overwrite(world.linked_victim)


@attempt()
def write_through_a_link_of_its_own(world: World) -> None:
    os.symlink(world.folder, f"{world.workplace}/own")
    overwrite(f"{world.workplace}/own/victim")


@attempt()
def create_through_a_dangling_link(world: World) -> None:
    os.symlink(f"{world.folder}/new", f"{world.workplace}/dangling")
    os.close(os.open(f"{world.workplace}/dangling", os.O_WRONLY | os.O_CREAT))


@attempt()
def write_through_a_hard_link_of_its_own(world: World) -> None:
    os.link(world.victim, f"{world.workplace}/hard")
    overwrite(f"{world.workplace}/hard")


@attempt()
def hard_link_from_the_workspace_to_outside(world: World) -> None:
    with open(f"{world.workplace}/own", "w") as own:
        own.write("mine")
    os.link(f"{world.workplace}/own", f"{world.folder}/new")


@attempt()
def hard_link_outside(world: World) -> None:
    os.link(world.victim, f"{world.folder}/new")


@attempt()
def hard_link_by_descriptor(world: World) -> None:
    held = os.open(world.victim, os.O_PATH)
    hard = f"{world.workplace}/hard"
    call("linkat", AT_FDCWD, f"/proc/self/fd/{held}".encode(), AT_FDCWD, hard.encode(), FOLLOW)
    overwrite(hard)


@attempt()
def symbolic_link_outside(world: World) -> None:
    os.symlink("victim", f"{world.folder}/new")


# --- descriptors ------------------------------------------------------------------------


@attempt()
def write_to_what_the_server_has_open(world: World) -> None:
    os.write(world.descriptors[0], b"lost")


@attempt()
def create_below_a_directory_the_server_has_open(world: World) -> None:
    os.close(os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=world.descriptors[1]))


@attempt()
def write_to_what_the_server_has_open_through_proc(world: World) -> None:
    overwrite(f"/proc/{world.server}/fd/{world.descriptors[0]}")


LEFT_OPEN: Final = [
    int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")
]
"""Descriptors that this process inherited, besides its three streams."""


@attempt()
def use_whatever_was_left_open(world: World) -> None:
    if not LEFT_OPEN:
        raise NotPossible("nothing was")


@attempt()
def open_again_what_was_opened_by_path_only(world: World) -> None:
    held = os.open(world.victim, os.O_PATH)
    overwrite(f"/proc/self/fd/{held}")


@attempt()
def open_again_for_writing_what_was_opened_for_reading(world: World) -> None:
    held = os.open(world.victim, os.O_RDONLY)
    overwrite(f"/dev/fd/{held}")


@attempt()
def write_below_a_directory_that_was_opened_by_path_only(world: World) -> None:
    overwrite("victim", directory=os.open(world.folder, os.O_PATH | os.O_DIRECTORY))


@attempt(needs="openat2, Linux 5.6")
def write_by_the_newer_call(world: World) -> None:
    how = (ctypes.c_uint64 * 3)(os.O_WRONLY, 0, 0)
    written = call("openat2", AT_FDCWD, world.victim.encode(), how, ctypes.sizeof(how))
    os.write(written, b"lost")


# --- other ways to change a directory or a file ----------------------------------------------


@attempt()
def create_a_file(world: World) -> None:
    os.close(os.open(f"{world.folder}/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL))


@attempt()
def open_read_only_and_create(world: World) -> None:
    os.close(os.open(f"{world.folder}/new", os.O_RDONLY | os.O_CREAT))


@attempt()
def open_read_only_and_cut(world: World) -> None:
    os.close(os.open(world.victim, os.O_RDONLY | os.O_TRUNC))


@attempt()
def append(world: World) -> None:
    with open(world.victim, "a") as victim:
        victim.write("lost")


@attempt()
def cut(world: World) -> None:
    os.truncate(world.victim, 0)


@attempt(needs="a file system with files without a name")
def name_a_file_without_a_name(world: World) -> None:
    held = os.open(world.folder, os.O_TMPFILE | os.O_WRONLY)
    new = f"{world.folder}/new"
    call("linkat", AT_FDCWD, f"/proc/self/fd/{held}".encode(), AT_FDCWD, new.encode(), FOLLOW)


@attempt()
def delete(world: World) -> None:
    os.unlink(world.victim)


@attempt()
def delete_a_directory(world: World) -> None:
    os.rmdir(f"{world.outside}/empty")


@attempt()
def make_a_directory(world: World) -> None:
    os.mkdir(f"{world.folder}/new")


@attempt()
def make_a_pipe(world: World) -> None:
    os.mkfifo(f"{world.folder}/new")


@attempt()
def rename(world: World) -> None:
    os.rename(world.victim, f"{world.folder}/new")


@attempt()
def move_into_the_workspace(world: World) -> None:
    os.rename(world.victim, f"{world.workplace}/taken")


@attempt()
def move_out_of_the_workspace(world: World) -> None:
    with open(f"{world.workplace}/own", "w") as own:
        own.write("mine")
    os.rename(f"{world.workplace}/own", world.victim)


@attempt()
def exchange_with_a_file_of_the_workspace(world: World) -> None:
    own = f"{world.workplace}/own"
    with open(own, "w") as written:
        written.write("mine")
    call("renameat2", AT_FDCWD, own.encode(), AT_FDCWD, world.victim.encode(), RENAME_EXCHANGE)


@attempt()
def move_the_workspace_itself(world: World) -> None:
    # Restored at once, so that a control run does not affect later attempts.
    os.rename(world.inside, f"{world.folder}/new")
    os.rename(f"{world.folder}/new", world.inside)


@attempt()
def write_to_a_file_of_shared_memory(world: World) -> None:
    overwrite(world.shared_file)


@attempt()
def write_to_a_pipe_with_a_reader(world: World) -> None:
    overwrite(f"{world.outside}/pipe")


@attempt(needs=SUPERUSER)
def write_a_setting_of_the_kernel(world: World) -> None:
    with open("/proc/sys/kernel/core_pattern", "r+") as setting:
        pattern = setting.read()
        setting.seek(0)
        setting.write(pattern)


@attempt(needs=f"{SUPERUSER}, and control groups")
def join_another_control_group(world: World) -> None:
    for place, folders, _ in os.walk("/sys/fs/cgroup"):
        folders[:] = folders if place == "/sys/fs/cgroup" else []
        try:
            with open(f"{place}/cgroup.procs", "w") as members:
                members.write(str(os.getpid()))
            return
        except FileNotFoundError:
            continue
    raise NotPossible("there are none")


@attempt(needs=SUPERUSER)
def make_a_node_for_the_disk(world: World) -> None:
    os.mknod(f"{world.workplace}/disk", stat.S_IFBLK | 0o600, os.stat(world.outside).st_dev)


@attempt(needs=SUPERUSER)
def open_a_device_by_a_node_of_its_own(world: World) -> None:
    os.mknod(f"{world.workplace}/kernel-messages", stat.S_IFCHR | 0o600, os.makedev(1, 11))
    os.close(os.open(f"{world.workplace}/kernel-messages", os.O_WRONLY))


# --- another view of the files -----------------------------------------------------------


def as_superuser_of_a_namespace(flags: int = 0) -> None:
    """Enter a user namespace as its superuser, unless the process is superuser already."""
    who, group = os.getuid(), os.getgid()
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {who} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as written:
            written.write(text)


@attempt(needs=NAMESPACES)
def make_a_user_namespace(world: World) -> None:
    as_superuser_of_a_namespace()


@attempt(needs=NAMESPACES)
def make_a_user_namespace_with_a_child(world: World) -> None:
    child = call("clone", CLONE_NEWUSER | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@attempt(needs=NAMESPACES)
def make_a_user_namespace_with_a_child_by_the_newer_call(world: World) -> None:
    arguments = (ctypes.c_uint64 * 8)(CLONE_NEWUSER, 0, 0, 0, 17)
    child = call("clone3", arguments, ctypes.sizeof(arguments))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@attempt(needs=NAMESPACES)
def make_the_disk_writable_in_a_namespace(world: World) -> None:
    as_superuser_of_a_namespace()
    call("mount", b"none", b"/", None, MS_REMOUNT | MS_BIND, None)
    overwrite(world.victim)


@attempt(needs=SUPERUSER)
def make_the_disk_writable(world: World) -> None:
    call("unshare", CLONE_NEWNS)
    call("mount", b"none", b"/", None, MS_REMOUNT | MS_BIND, None)
    overwrite(world.victim)


@attempt(needs=SUPERUSER)
def make_a_mount_namespace(world: World) -> None:
    call("unshare", CLONE_NEWNS)


@attempt(needs=SUPERUSER)
def put_an_empty_disk_there(world: World) -> None:
    call("mount", b"none", world.folder.encode(), b"tmpfs", 0, None)
    call("umount2", world.folder.encode(), 2)


@attempt(needs=SUPERUSER)
def bind_it_into_the_workspace(world: World) -> None:
    place = f"{world.workplace}/bound".encode()
    os.mkdir(place)
    call("mount", world.folder.encode(), place, None, MS_BIND, None)
    try:
        overwrite(f"{world.workplace}/bound/victim")
    finally:
        call("umount2", place, 2)


@attempt(needs=SUPERUSER)
def bind_it_into_the_workspace_by_the_newer_calls(world: World) -> None:
    place = f"{world.workplace}/bound".encode()
    os.mkdir(place)
    tree = call("open_tree", AT_FDCWD, world.folder.encode(), 1)
    call("move_mount", tree, b"", AT_FDCWD, place, 4)
    try:
        overwrite(f"{world.workplace}/bound/victim")
    finally:
        call("umount2", place, 2)


@attempt(needs=SUPERUSER)
def mount_by_the_newer_calls(world: World) -> None:
    kind = call("fsopen", b"tmpfs", 0)
    call("fsconfig", kind, 6, None, None, 0)
    call("fsmount", kind, 0, 0)


@attempt(needs=SUPERUSER)
def take_away_read_only(world: World) -> None:
    # struct mount_attr: to set, to clear, propagation, user namespace
    change = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
    call("unshare", CLONE_NEWNS)
    call("mount_setattr", AT_FDCWD, b"/", 0, change, ctypes.sizeof(change))
    overwrite(world.victim)


@attempt(needs=SUPERUSER)
def enter_the_namespace_of_the_server(world: World) -> None:
    place = os.open(f"/proc/{world.server}/ns/mnt", os.O_RDONLY)
    call("unshare", CLONE_NEWNS)
    call("setns", place, 0)
    overwrite(world.victim)


@attempt(needs=SUPERUSER)
def change_the_root(world: World) -> None:
    call("chroot", world.folder.encode())


@attempt(needs=SUPERUSER)
def change_the_root_by_pivoting(world: World) -> None:
    call("unshare", CLONE_NEWNS)
    call("mount", b"none", b"/", None, MS_REC | 1 << 18, None)  # private
    call("mount", world.folder.encode(), world.folder.encode(), None, MS_BIND, None)
    os.chdir(world.folder)
    call("pivot_root", b".", b".")


@attempt(needs=SUPERUSER)
def open_by_handle(world: World) -> None:
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.c_uint.from_buffer(handle).value = 128
    mount = ctypes.c_int()
    call("name_to_handle_at", AT_FDCWD, world.victim.encode(), handle, ctypes.byref(mount), 0)
    place = os.open(world.folder, os.O_RDONLY)
    written = call("open_by_handle_at", place, handle, os.O_WRONLY)
    os.write(written, b"lost")


@attempt(needs=SUPERUSER)
def change_the_name_of_the_host(world: World) -> None:
    name = os.uname().nodename.encode()
    call("sethostname", name, len(name))
