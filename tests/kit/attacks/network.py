"""Runs inside the command: attempts to reach the network by the usual socket families."""

from __future__ import annotations

import socket

from kit.attacks.attempts import World, attempt

FAST_OPEN = 0x20000000


@attempt()
def connect(world: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sender:
        sender.connect(("127.0.0.1", world.port))


@attempt(needs="IPv6")
def connect_by_ipv6(world: World) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sender:
        sender.connect(("::1", world.port6))


@attempt(needs="IPv6")
def connect_from_ipv6_to_ipv4(world: World) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sender:
        sender.connect(("::ffff:127.0.0.1", world.port))


@attempt()
def connect_while_sending(world: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sender:
        sender.sendto(b"reached", FAST_OPEN, ("127.0.0.1", world.port))


@attempt()
def send_a_datagram(world: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"reached", ("127.0.0.1", world.datagram_port))


@attempt()
def send_a_datagram_in_parts(world: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendmsg([b"reached"], [], 0, ("127.0.0.1", world.datagram_port))


@attempt()
def listen(world: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()


@attempt()
def ask_the_kernel_about_the_network(world: World) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
        asking.bind((0, 0))
