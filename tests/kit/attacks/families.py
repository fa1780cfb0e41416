"""Runs inside the command: attempts to reach the network by unusual socket families, which are always refused."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

from kit.attacks.attempts import NotPossible, World, attempt
from kit.attacks.calls import call

SUPERUSER: Final = "the superuser"
X86: Final = "x86-64"
USUAL: Final = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
LAST_FAMILY: Final = 46


def opened(family: int, kind: int, protocol: int = 0) -> None:
    with socket.socket(family, kind, protocol):
        pass


@attempt(needs=SUPERUSER)
def raw_packets(world: World) -> None:
    opened(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


@attempt(needs=SUPERUSER)
def raw_packets_of_ipv6(world: World) -> None:
    opened(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)


@attempt(needs=SUPERUSER)
def whole_frames(world: World) -> None:
    opened(socket.AF_PACKET, socket.SOCK_RAW, 3)


@attempt(needs="the kernel's crypto as sockets")
def crypto_of_the_kernel(world: World) -> None:
    opened(socket.AF_ALG, socket.SOCK_SEQPACKET)


@attempt(needs="virtual machine sockets")
def the_host_of_a_virtual_machine(world: World) -> None:
    opened(socket.AF_VSOCK, socket.SOCK_STREAM)


@attempt()
def events_of_the_kernel(world: World) -> None:
    opened(socket.AF_NETLINK, socket.SOCK_RAW, 15)


@attempt()
def services_of_the_kernel(world: World) -> None:
    opened(socket.AF_NETLINK, socket.SOCK_RAW, 16)


def odd_ones() -> Iterator[int]:
    for family in range(LAST_FAMILY + 1):
        if family not in USUAL:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                try:
                    opened(family, kind)
                    yield family
                except OSError:
                    continue


@attempt(needs="a family of sockets that is not usual")
def any_family_that_is_not_usual(world: World) -> None:
    if not list(odd_ones()):
        raise NotPossible("none can be opened")


@attempt(needs=f"{SUPERUSER}, network namespaces aside")
def give_the_computer_an_address(world: World) -> None:
    # RTM_NEWADDR of 127.83.83.83/32 for the first interface, then RTM_DELADDR.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
        asking.bind((0, 0))
        for kind, flags in ((20, 0x605), (21, 5)):
            body = struct.pack("BBBBI", socket.AF_INET, 32, 0, 254, 1)
            body += struct.pack("HH4s", 8, 2, socket.inet_aton("127.83.83.83"))
            asking.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)
            refused = struct.unpack_from("i", asking.recv(4096), 16)[0]
            if refused:
                raise OSError(-refused, "netlink")


@attempt(needs="io_uring")
def a_ring_of_requests(world: World) -> None:
    os.close(call("io_uring_setup", 1, ctypes.create_string_buffer(120)))


def machine_code(code: bytes) -> int:
    """Run machine code as a function and return its result."""
    if os.uname().machine != "x86_64":
        raise NotPossible("this is machine code of another processor")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(start)())


def expect_descriptor(result: int) -> None:
    if result < 0:
        raise OSError(-result, "socket")


@attempt(needs=f"{X86} with calls of 32 bits")
def calls_of_32_bits(world: World) -> None:
    # push rbx; mov eax, 359 (socket); mov ebx, AF_INET; mov ecx, SOCK_STREAM; xor edx, edx; int 0x80; pop rbx; ret
    expect_descriptor(machine_code(bytes.fromhex("53 b867010000 bb02000000 b901000000 31d2 cd80 5b c3")))


@attempt(needs=f"{X86} with x32 calls")
def calls_of_x32(world: World) -> None:
    # mov eax, 0x40000000 + 41 (socket); mov edi, AF_INET; mov esi, SOCK_STREAM; xor edx, edx; syscall; ret
    expect_descriptor(machine_code(bytes.fromhex("b829000040 bf02000000 be01000000 31d2 0f05 c3")))


@attempt()
def raw_packets_with_bits_that_the_kernel_drops(world: World) -> None:
    # The kernel takes a family as 32 bits: a filter that compares 64 sees another number.
    result = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(41 if os.uname().machine == "x86_64" else 198),
        ctypes.c_long(socket.AF_NETLINK | 1 << 32),
        ctypes.c_long(socket.SOCK_RAW | 1 << 32),
        ctypes.c_long(16 | 1 << 32),
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), "socket")
