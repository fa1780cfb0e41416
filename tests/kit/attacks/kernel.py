"""Runs inside the command: attempts on keys, shared memory, queues, terminals and other objects of the kernel."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import termios
from typing import Final

from kit.attacks.attempts import NotPossible, World, attempt
from kit.attacks.calls import call

TIOCLINUX: Final = 0x541C
SESSION_KEYRING: Final = -3
USER_KEYRING: Final = -4


@attempt(needs="keyrings")
def add_a_key(world: World) -> None:
    call("add_key", b"user", b"parley-attack", b"x", 1, USER_KEYRING)


@attempt(needs="keyrings")
def ask_for_the_keyring(world: World) -> None:
    call("keyctl", 0, USER_KEYRING, 1)


@attempt(needs="keyrings")
def ask_for_a_key(world: World) -> None:
    call("add_key", b"user", b"parley-attack", b"x", 1, SESSION_KEYRING)
    call("request_key", b"user", b"parley-attack", None, 0)


@attempt()
def attach_shared_memory(world: World) -> None:
    call("shmat", world.shared_memory, 0, 0)


@attempt()
def attach_shared_memory_by_key(world: World) -> None:
    call("shmget", world.shared_memory_key, 0, 0)


@attempt()
def use_a_semaphore(world: World) -> None:
    call("semop", world.semaphore, struct.pack("Hhh", 0, 1, 0), 1)


@attempt()
def send_to_a_message_queue(world: World) -> None:
    call("msgsnd", world.message_queue, struct.pack("l8s", 1, b"reached"), 8, 0o4000)


@attempt()
def send_to_a_queue_with_a_name(world: World) -> None:
    queue = call("mq_open", world.posix_queue.encode(), os.O_WRONLY, 0, 0)
    call("mq_timedsend", queue, b"reached", 7, 0, None)


def terminal() -> int:
    """Create a terminal and make it the controlling terminal of this process."""
    main, other = os.openpty()
    os.setsid()
    fcntl.ioctl(other, termios.TIOCSCTTY, 0)
    os.dup(main)
    return other


@attempt()
def write_on_a_terminal_of_the_user(world: World) -> None:
    os.write(os.open(world.terminal, os.O_WRONLY | os.O_NOCTTY), b"reached")


@attempt()
def read_from_a_terminal_of_the_user(world: World) -> None:
    if not os.read(os.open(world.terminal, os.O_RDONLY | os.O_NOCTTY), 100):
        raise NotPossible("nothing was typed")


@attempt(needs="terminals that take input from programs")
def type_into_a_terminal(world: World) -> None:
    fcntl.ioctl(terminal(), termios.TIOCSTI, b"x")


@attempt(needs="terminals that take input from programs")
def type_into_a_terminal_with_bits_that_the_kernel_drops(world: World) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    command = ctypes.c_ulong(termios.TIOCSTI | 1 << 32)
    if libc.ioctl(terminal(), command, ctypes.c_char_p(b"x")) < 0:
        raise OSError(ctypes.get_errno(), "ioctl")


@attempt(needs="a console")
def paste_into_a_console(world: World) -> None:
    fcntl.ioctl(terminal(), TIOCLINUX, b"\x03")


@attempt(needs="programs in the kernel")
def put_a_program_into_the_kernel(world: World) -> None:
    # An array of one entry, the smallest possible.
    os.close(call("bpf", 0, (ctypes.c_uint32 * 18)(2, 4, 4, 1), 72))


@attempt(needs="page faults for programs")
def take_page_faults(world: World) -> None:
    os.close(call("userfaultfd", 0))
