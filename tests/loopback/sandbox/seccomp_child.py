"""A program that installs a seccomp program in itself, makes attempts, and prints the outcome of each.

Its input is a JSON object with `program` (hexadecimal; empty for none), `numbers` (of system calls, by name) and
`directory`, in which it may create files and in which a socket `host` listens. Its output is a JSON object with the
outcome of each attempt: `ok`, the name of an error, or the name of the signal that ended the attempt.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import json
import mmap
import multiprocessing
import os
import platform
import resource
import signal
import socket
import stat
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Any

Attempt = Callable[[], Any]

GIVEN = json.load(sys.stdin)
NUMBERS: dict[str, int] = GIVEN["numbers"]
HERE: str = GIVEN["directory"]
HOST = os.path.join(HERE, "host")
PARENT = os.getppid()
UPPER = 0x1234 << 32
NOBODY = 2**31 - 8
"""The id of a user without processes, so that the attempt changes no real process."""

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(number: int | str, *arguments: int) -> int:
    """Make a system call by name or number."""
    number = NUMBERS[number] if isinstance(number, str) else number
    result: int = libc.syscall(*(ctypes.c_long(word) for word in (number, *arguments)))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def confine(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    loaded = Program(len(program) // 8, program)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(loaded), 0, 0):
        raise OSError(ctypes.get_errno(), "the program was not taken")


def in_a_child(attempt: Attempt) -> None:
    """Run a function in a child process. Its error is raised here; a signal becomes an `InterruptedError`."""
    child = os.fork()
    if not child:
        code = 0
        try:
            attempt()
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise InterruptedError(os.WTERMSIG(status))
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, os.strerror(code))


def connects(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)


def binds(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()


def makes_socket(family: int, kind: int, protocol: int = 0) -> Attempt:
    return lambda: os.close(call("socket", family, kind, protocol))


def makes_pair(kind: int) -> None:
    for end in socket.socketpair(socket.AF_UNIX, kind):
        end.close()


def speaks_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"


def speaks_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        one.sendto(b"hello", other.getsockname())
        assert other.recv(5) == b"hello"


def runs_a_loop() -> None:
    async def work() -> int:
        loop = asyncio.get_running_loop()
        child = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", "raise SystemExit(3)")
        return await loop.run_in_executor(None, sum, (1, 2)) + await child.wait()

    assert asyncio.run(work()) == 6


def talks_to_a_process() -> None:
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=theirs.send, args=("hello",))
    child.start()
    assert ours.recv() == "hello"
    child.join()


def starts_threads() -> None:
    thread = threading.Thread(target=time.monotonic)
    thread.start()
    thread.join()


def types_into_a_terminal(command: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of the terminal causes this signal
    controller, terminal = os.openpty()
    try:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        typed = ctypes.create_string_buffer(b"x")
        call("ioctl", terminal, command, ctypes.addressof(typed))
    finally:
        os.close(controller)
        os.close(terminal)


def opens_a_terminal() -> None:
    controller, terminal = os.openpty()
    termios.tcgetattr(terminal)
    os.close(controller)
    os.close(terminal)


def reads_its_own_memory() -> None:
    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    word, target = ctypes.create_string_buffer(b"word"), ctypes.create_string_buffer(4)
    one, two = Vector(ctypes.addressof(target), 4), Vector(ctypes.addressof(word), 4)
    call("process_vm_readv", os.getpid(), ctypes.addressof(one), 1, ctypes.addressof(two), 1, 0)


def starts_a_ring() -> None:
    parameters = ctypes.create_string_buffer(120)
    os.close(call("io_uring_setup", 4, ctypes.addressof(parameters)))


def clones(flags: int) -> None:
    """Call `clone` like `fork`, with flags."""
    child = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def clones_in_the_new_way() -> None:
    arguments = (ctypes.c_uint64 * 11)()
    arguments[4] = signal.SIGCHLD
    child = call("clone3", ctypes.addressof(arguments), ctypes.sizeof(arguments))
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def asks_as_a_32_bit_program() -> None:
    """Call `getpid` by the interrupt of i386."""
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as code:
        code.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")
        entry = ctypes.c_char.from_buffer(code)
        answer = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(entry))()
        del entry
    if answer != os.getpid():
        raise OSError(errno.ENOSYS, "no such calls here")


def limits_its_parent() -> None:
    limits = ctypes.create_string_buffer(16)
    call("prlimit64", PARENT, resource.RLIMIT_CORE, 0, ctypes.addressof(limits))
    call("prlimit64", PARENT, resource.RLIMIT_CORE, ctypes.addressof(limits), 0)


def reads_limits_of_its_parent() -> None:
    limits = ctypes.create_string_buffer(16)
    call("prlimit64", PARENT, resource.RLIMIT_CORE, 0, ctypes.addressof(limits))


def file_here(name: str) -> str:
    path = os.path.join(HERE, f"{os.getpid()}.{name}")
    with open(path, "xb"):
        return path


def sets_attributes_of_a_file() -> None:
    with open(file_here("attributes"), "rb") as file:
        flags = ctypes.c_long()
        call("ioctl", file.fileno(), 0x80086601, ctypes.addressof(flags))
        call("ioctl", file.fileno(), 0x40086602, ctypes.addressof(flags))


def opens_a_queue() -> None:
    name = f"parley-{os.getpid()}".encode()
    buffer = ctypes.create_string_buffer(name)
    os.close(call("mq_open", ctypes.addressof(buffer), os.O_CREAT | os.O_RDWR, 0o600, 0))
    call("mq_unlink", ctypes.addressof(buffer))


def shares_memory() -> None:
    segment = call("shmget", 0, 4096, 0o600)
    call("shmctl", segment, 0, 0)


ATTEMPTS: dict[str, Attempt] = {
    "internet stream": makes_socket(2, 1),
    "internet stream, upper half set": makes_socket(2 | UPPER, 1 | UPPER),
    "internet datagram": makes_socket(2, 2),
    "internet 6 stream": makes_socket(10, 1),
    "routes": makes_socket(16, 3),
    "kernel events": makes_socket(16, 3, 15),
    "ciphers of the kernel": makes_socket(38, 5),
    "unix stream": makes_socket(1, 1),
    "unix datagram": makes_socket(1, 2),
    "unix raw": makes_socket(1, 3),
    "unix stream to the host": lambda: connects(HOST),
    "unix stream to an abstract name": lambda: connects("\0" + HOST),
    "unix server by path": lambda: binds(os.path.join(HERE, str(os.getpid()))),
    "unix server by abstract name": lambda: binds(f"\0{HERE}/{os.getpid()}"),
    "pair of streams": lambda: makes_pair(socket.SOCK_STREAM),
    "pair of packets": lambda: makes_pair(socket.SOCK_SEQPACKET),
    "pair of datagrams": lambda: makes_pair(socket.SOCK_DGRAM),
    "tcp to itself": speaks_tcp,
    "udp to itself": speaks_udp,
    "names of computers": lambda: socket.getaddrinfo("localhost", 80),
    "event loop": runs_a_loop,
    "process with a pipe": talks_to_a_process,
    "threads": starts_threads,
    "subprocess": lambda: subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True),
    "pseudo-terminal": opens_a_terminal,
    "typing into a terminal": lambda: in_a_child(lambda: types_into_a_terminal(termios.TIOCSTI)),
    "typing into a terminal, upper half set": lambda: in_a_child(
        lambda: types_into_a_terminal(termios.TIOCSTI | UPPER)
    ),
    "being traced": lambda: in_a_child(lambda: call("ptrace", 0, 0, 0, 0)),
    "memory of a process": reads_its_own_memory,
    "comparing processes": lambda: call("kcmp", os.getpid(), os.getpid(), 0, 0, 0),
    "keyring": lambda: in_a_child(lambda: call("keyctl", 0, -3 & 0xFFFFFFFF, 1)),
    "ring": starts_a_ring,
    "user namespace": lambda: in_a_child(lambda: call("unshare", 0x10000000)),
    "user namespace by clone": lambda: in_a_child(lambda: clones(0x10000000)),
    "user namespace by clone, upper half set": lambda: in_a_child(lambda: clones(0x10000000 | UPPER)),
    "clone": lambda: in_a_child(lambda: clones(0)),
    "clone3": lambda: in_a_child(clones_in_the_new_way),
    "descriptors of its own": lambda: in_a_child(lambda: call("unshare", 0x400)),
    "limits of its parent": limits_its_parent,
    "reading limits of its parent": reads_limits_of_its_parent,
    "limits of its own": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "priority of its parent": lambda: os.setpriority(os.PRIO_PROCESS, PARENT, os.getpriority(0, PARENT)),
    "priority of a user without processes": lambda: os.setpriority(os.PRIO_USER, NOBODY, 0),
    "priority of its own": lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(0, 0)),
    "processors of its parent": lambda: os.sched_setaffinity(PARENT, os.sched_getaffinity(PARENT)),
    "processors of its own": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "pipe by name": lambda: os.mkfifo(os.path.join(HERE, f"{os.getpid()}.pipe")),
    "device": lambda: os.mknod(os.path.join(HERE, f"{os.getpid()}.device"), stat.S_IFCHR, os.makedev(1, 3)),
    "permissions": lambda: os.chmod(file_here("permissions"), 0o600),
    "owner": lambda: os.chown(file_here("owner"), os.getuid(), -1),
    "times": lambda: os.utime(file_here("times"), (1, 1)),
    "extended attribute": lambda: os.setxattr(file_here("extended"), "user.parley", b"1"),
    "attributes of a file": sets_attributes_of_a_file,
    "shared memory": shares_memory,
    "message queue": opens_a_queue,
    "number of x32": lambda: call(0x40000000 | 39),
}

if platform.machine() == "x86_64":
    ATTEMPTS["calls of i386"] = lambda: in_a_child(asks_as_a_32_bit_program)


def outcome(attempt: Attempt) -> str:
    try:
        attempt()
    except InterruptedError as ended:
        return signal.Signals(ended.args[0]).name
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    return "ok"


if __name__ == "__main__":
    if GIVEN["program"]:
        confine(bytes.fromhex(GIVEN["program"]))
    json.dump({name: outcome(attempt) for name, attempt in ATTEMPTS.items()}, sys.stdout)
