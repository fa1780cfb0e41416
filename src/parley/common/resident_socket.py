"""The socket of a home's resident server: how to connect to it, and the lines that precede the protocol.

Used by the relay and the Python client, which say hello, and by the server, which answers. Imports the standard
library alone, because the relay must start fast.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

from parley.common.home import SOCKET
from parley.common.unix_sockets import is_of_same_user, short_path

__all__ = [
    "ANSWER_SECONDS",
    "HELLO_VERSION",
    "MOST_ANSWER_BYTES",
    "RELAY",
    "NoResident",
    "Refused",
    "ask",
    "connect",
    "decode_answer",
    "encode_line",
    "open_socket",
]

HELLO_VERSION: Final = 1

RELAY: Final = "relay"
"""The kind of the first line of a client that sends its own environment."""

ANSWER_SECONDS: Final = 10.0
"""How long the server may take to answer a line. A server that is stopped (SIGSTOP) never answers."""
MOST_ANSWER_BYTES: Final = 64 * 1024


class NoResident(Exception):
    """No resident server of the home can be reached. The text says why; it is empty if none runs."""


class Refused(Exception):
    """The resident server does not serve this process. The text says why."""


def open_socket(path: str, *, timeout_seconds: float) -> socket.socket:
    """Connect to the server that listens at a path; with a timeout of 0, the socket does not block.

    Raises:
        BlockingIOError: the timeout is 0 and the backlog of the server is full.
        OSError: no server listens there, it does not accept in time, or it belongs to another user.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(timeout_seconds)
        with short_path(*os.path.split(path)) as short:
            channel.connect(short)
        if not is_of_same_user(channel):
            raise PermissionError(f"{path} belongs to another user")
    except BaseException:
        channel.close()
        raise
    return channel


def connect(home: str) -> socket.socket:
    """Connect to the resident server of a home.

    Raises:
        NoResident: no resident server runs, or it cannot be reached.
    """
    try:
        return open_socket(os.path.join(home, SOCKET), timeout_seconds=ANSWER_SECONDS)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NoResident from None
    except OSError as error:  # also a timeout
        raise NoResident(f"the resident server cannot be reached: {error.strerror or error}") from None


def encode_line(kind: str, **members: Any) -> bytes:
    """Encode a line that is not MCP, for the resident server."""
    import json  # imported here: it takes long, and most homes have no resident server

    return json.dumps({"parley": kind, "v": HELLO_VERSION, **members}).encode() + b"\n"


def decode_answer(line: bytes) -> dict[str, Any]:
    """Return the server's answer to a line that is not MCP.

    Raises:
        NoResident: this is no answer of a resident server.
        Refused: the server refuses; the text is its reason.
    """
    import json

    try:
        answer = json.loads(line)
    except ValueError:
        raise NoResident("the resident server gave an answer that is not JSON") from None
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        reason = answer.get("reason") if isinstance(answer, dict) else None
        raise Refused(str(reason or "it gave no reason"))
    return answer


def ask(channel: socket.socket, kind: str, **members: Any) -> dict[str, Any]:
    """Send one line that is not MCP to the server and return its answer.

    Raises:
        NoResident: the server ended or did not answer.
        Refused: the server refuses; the text is its reason.
    """
    answer = b""
    try:
        channel.sendall(encode_line(kind, **members))
        while not answer.endswith(b"\n"):
            piece = channel.recv(4096)  # not more than the answer: the server sends nothing else before we do
            if not piece or len(answer) > MOST_ANSWER_BYTES:
                raise NoResident("the resident server ended while it was greeted")
            answer += piece
    except OSError as error:
        raise NoResident(f"the resident server does not answer: {error.strerror or error}") from None
    return decode_answer(answer)
