"""The first line of a connection to the resident server (the hello), and the server's response to this line."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, convert

from parley.config.checks import MAX_PATH_BYTES

__all__ = ["Hello", "decode_hello", "encode_answer", "is_path", "read_first_line", "send_answer"]

MAX_HELLO_BYTES: Final = 8 * 1024 * 1024
"""The maximum length of a hello, in bytes. A hello contains the environment of a process, and the limit is larger
than any environment. A longer first line of a connection is therefore the first message of an ordinary MCP client.
"""


class Hello(Struct):
    """The first line of a connection from a relay, or from a process that sends a request about the server."""

    parley: str
    """The kind of the line: `relay` for the hello of a relay, or the name of a request about the server, such as
    `status`.
    """
    v: int = 0
    """The version of the relay's protocol (`HELLO_VERSION`)."""
    env: dict[str, str] = {}
    cwd: str = "/"
    overrides: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    """The paths where the Parley program of the relay is installed, beginning with the path of its package. The
    server protects these paths from commands.
    """
    client: int | None = None
    """In the request `interrupt`, the number that the server has assigned to the relay of the client; None in other
    lines.
    """


async def read_first_line(channel: socket.socket) -> tuple[bytes, bytes]:
    """Return the first line of a connection with its line end, and the bytes after that line.

    If the line is too long or incomplete, return the bytes that were received, and empty bytes.
    """
    loop, received = asyncio.get_running_loop(), bytearray()
    while len(received) < MAX_HELLO_BYTES:
        piece = await loop.sock_recv(channel, 64 * 1024)
        received += piece
        if not piece:
            break
        if b"\n" in piece:
            end = received.index(b"\n") + 1
            return bytes(received[:end]), bytes(received[end:])
    return bytes(received), b""


def decode_hello(line: bytes) -> Hello | None:
    """Decode the first line of a connection: the hello of a relay, or a request about the server. Return None if
    the line is the first message of an ordinary MCP client.

    The standard library decodes the line, because environment variables may contain bytes that are not UTF-8.

    Raises:
        ValidationError: the line is a hello or a request with a missing member or a member of the wrong type.
    """
    if b'"parley"' not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return convert(found, Hello) if isinstance(found, dict) and "parley" in found else None


def is_path(path: str) -> bool:
    try:
        return path.startswith("/") and "\0" not in path and len(os.fsencode(path)) <= MAX_PATH_BYTES
    except UnicodeEncodeError:
        return False


async def send_answer(channel: socket.socket, answer: Mapping[str, Any]) -> None:
    await asyncio.get_running_loop().sock_sendall(channel, encode_answer(answer))


def encode_answer(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"
