"""Runs inside the command: attempts to connect to named sockets of this computer."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

from kit.attacks.attempts import World, attempt

STREAM, DATAGRAM, PACKETS, RAW = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW


def connect(kind: int, address: str) -> None:
    with socket.socket(socket.AF_UNIX, kind) as sender:
        sender.connect(address)
        sender.send(b"reached")


def in_parts(sender: socket.socket, address: str) -> None:
    sender.sendmsg([b"reached"], [], 0, address)


def whole(sender: socket.socket, address: str) -> None:
    sender.sendto(b"reached", address)


def send(kind: int, address: str, way: Callable[[socket.socket, str], None], *, pair: bool = False) -> None:
    if pair:
        sender, _ = socket.socketpair(socket.AF_UNIX, kind)
    else:
        sender = socket.socket(socket.AF_UNIX, kind)
    way(sender, address)


@attempt()
def connect_by_path(world: World) -> None:
    connect(STREAM, f"{world.outside}/stream")


@attempt()
def connect_by_path_in_the_workspace(world: World) -> None:
    connect(STREAM, f"{world.inside}/stream")


@attempt()
def connect_by_path_in_packets(world: World) -> None:
    connect(PACKETS, f"{world.outside}/packets")


@attempt()
def connect_by_path_with_datagrams(world: World) -> None:
    connect(DATAGRAM, f"{world.outside}/datagrams")


@attempt()
def connect_by_path_with_raw_datagrams(world: World) -> None:
    connect(RAW, f"{world.outside}/datagrams")


@attempt()
def connect_through_proc(world: World) -> None:
    held = os.open(f"{world.outside}/stream", os.O_PATH)
    connect(STREAM, f"/proc/self/fd/{held}")


@attempt()
def connect_without_a_path(world: World) -> None:
    connect(STREAM, f"\0{world.abstract}stream")


@attempt()
def connect_without_a_path_in_packets(world: World) -> None:
    connect(PACKETS, f"\0{world.abstract}packets")


@attempt()
def connect_without_a_path_with_datagrams(world: World) -> None:
    connect(DATAGRAM, f"\0{world.abstract}datagrams")


@attempt()
def send_to_a_path(world: World) -> None:
    send(DATAGRAM, f"{world.outside}/datagrams", whole)


@attempt()
def send_in_parts_to_a_path(world: World) -> None:
    send(DATAGRAM, f"{world.outside}/datagrams", in_parts)


@attempt()
def send_raw_in_parts_to_a_path(world: World) -> None:
    send(RAW, f"{world.outside}/datagrams", in_parts)


@attempt()
def send_from_a_pair_to_a_path(world: World) -> None:
    send(DATAGRAM, f"{world.outside}/datagrams", whole, pair=True)


@attempt()
def send_in_parts_from_a_pair_to_a_path(world: World) -> None:
    send(DATAGRAM, f"{world.outside}/datagrams", in_parts, pair=True)


@attempt()
def send_in_parts_from_a_raw_pair_to_a_path(world: World) -> None:
    send(RAW, f"{world.outside}/datagrams", in_parts, pair=True)


@attempt()
def send_in_parts_from_a_pair_without_a_path(world: World) -> None:
    send(DATAGRAM, f"\0{world.abstract}datagrams", in_parts, pair=True)


@attempt()
def send_in_parts_without_a_path(world: World) -> None:
    send(DATAGRAM, f"\0{world.abstract}datagrams", in_parts)


@attempt()
def give_a_descriptor_away(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as sender:
        sender.connect(f"{world.outside}/stream")
        sender.sendmsg([b"reached"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))])
