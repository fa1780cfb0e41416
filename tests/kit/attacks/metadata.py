"""Runs inside the command: attempts to change mode, owner, times and attributes of files outside."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from typing import Final

from kit.attacks.attempts import World, attempt
from kit.attacks.calls import call

AT_FDCWD: Final = -100
NO_DUMP: Final = 0x40
"""An attribute without effect that the owner of a file may set."""
GET_FLAGS, SET_FLAGS = 0x80086601, 0x40086602
GET_ATTRIBUTES, SET_ATTRIBUTES = 0x801C581F, 0x401C5820
ATTRIBUTES: Final = "a file system with user attributes"
FLAGS: Final = "a file system with flags"


@attempt()
def change_the_mode(world: World) -> None:
    os.chmod(world.victim, 0o777)


@attempt()
def change_the_mode_through_a_link(world: World) -> None:
    os.chmod(world.linked_victim, 0o777)


@attempt()
def change_the_mode_through_proc(world: World) -> None:
    os.chmod(f"/proc/self/root{world.victim}", 0o777)


@attempt()
def change_the_mode_by_descriptor(world: World) -> None:
    os.fchmod(os.open(world.victim, os.O_RDONLY), 0o777)


@attempt()
def change_the_mode_by_a_descriptor_for_the_path_only(world: World) -> None:
    os.chmod(f"/proc/self/fd/{os.open(world.victim, os.O_PATH)}", 0o777)


@attempt()
def change_the_mode_below_a_directory(world: World) -> None:
    os.chmod("victim", 0o777, dir_fd=os.open(world.folder, os.O_RDONLY))


@attempt(needs="fchmodat2, Linux 6.6")
def change_the_mode_by_the_newest_call(world: World) -> None:
    call("fchmodat2", AT_FDCWD, world.victim.encode(), 0o777, 0)


@attempt()
def change_the_mode_of_the_directory(world: World) -> None:
    os.chmod(world.folder, 0o777)


@attempt()
def change_the_owner(world: World) -> None:
    os.chown(world.victim, os.getuid(), os.getgid())


@attempt()
def change_the_owner_by_descriptor(world: World) -> None:
    os.fchown(os.open(world.victim, os.O_RDONLY), os.getuid(), os.getgid())


@attempt()
def change_the_owner_of_a_link(world: World) -> None:
    os.lchown(world.victim, os.getuid(), os.getgid())


@attempt()
def change_the_times(world: World) -> None:
    os.utime(world.victim, (1, 1))


@attempt()
def change_the_times_by_descriptor(world: World) -> None:
    os.utime(os.open(world.victim, os.O_RDONLY), (1, 1))


@attempt()
def change_the_times_of_a_link(world: World) -> None:
    os.utime(world.victim, (1, 1), follow_symlinks=False)


@attempt(needs=ATTRIBUTES)
def set_an_attribute(world: World) -> None:
    os.setxattr(world.victim, "user.parley", b"lost")


@attempt(needs=ATTRIBUTES)
def set_an_attribute_by_descriptor(world: World) -> None:
    os.setxattr(os.open(world.victim, os.O_RDONLY), "user.parley", b"lost")


@attempt(needs=ATTRIBUTES)
def remove_an_attribute(world: World) -> None:
    os.removexattr(world.victim, "user.there")


@attempt(needs=f"{ATTRIBUTES}, and setxattrat, Linux 6.13")
def set_an_attribute_by_the_newest_call(world: World) -> None:
    value = ctypes.create_string_buffer(b"lost", 4)
    arguments = struct.pack("QII", ctypes.addressof(value), 4, 0)
    call("setxattrat", AT_FDCWD, world.victim.encode(), 0, b"user.parley", arguments, len(arguments))


@attempt(needs=FLAGS)
def set_a_flag(world: World) -> None:
    held = os.open(world.victim, os.O_RDONLY)
    flags = struct.unpack("l", fcntl.ioctl(held, GET_FLAGS, bytes(8)))[0]
    fcntl.ioctl(held, SET_FLAGS, struct.pack("l", flags | NO_DUMP))


@attempt(needs=FLAGS)
def set_a_flag_by_the_newer_call(world: World) -> None:
    held = os.open(world.victim, os.O_RDONLY)
    found = bytearray(fcntl.ioctl(held, GET_ATTRIBUTES, bytes(28)))
    found[0] |= 0x80  # the same attribute in this call
    fcntl.ioctl(held, SET_ATTRIBUTES, bytes(found))


@attempt(needs=f"{FLAGS}, and file_setattr, Linux 6.17")
def set_a_flag_by_the_newest_call(world: World) -> None:
    found = ctypes.create_string_buffer(24)
    call("file_getattr", AT_FDCWD, world.victim.encode(), found, len(found), 0)
    flags = ctypes.c_uint64.from_buffer(found)
    flags.value |= 0x80
    call("file_setattr", AT_FDCWD, world.victim.encode(), found, len(found), 0)
