"""Connects to the socket of a home's resident server, and encodes and decodes the JSON lines that are exchanged
before the first MCP message.

The relay, the Python client and the resident server use this module. It imports only the standard library, because
the relay must start quickly.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Final

from parley.common.home import SOCKET
from parley.common.unix_sockets import is_of_same_user, short_path

__all__ = [
    "ANSWER_SECONDS",
    "HELLO_VERSION",
    "MAX_ANSWER_BYTES",
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
"""The kind of the JSON line in which a relay sends the environment of its client before the first MCP message."""

ANSWER_SECONDS: Final = 5.0
"""The maximum total time, in seconds, for connecting to the server and receiving its response to a line. A server
that was stopped with SIGSTOP never responds.
"""
MAX_ANSWER_BYTES: Final = 64 * 1024
"""The maximum size of the response to a line, in bytes."""


class NoResident(Exception):
    """Raised if the resident server of a home cannot be reached. The message gives the reason, and is empty if no
    resident server is running.
    """


class Refused(Exception):
    """Raised if the resident server rejects a request or does not accept this process as a client. The message
    gives the reason.
    """


def open_socket(path: str, *, timeout_seconds: float) -> socket.socket:
    """Connect to the server that is listening on the Unix socket at `path`, and return the connected socket. With a
    timeout of 0, the socket does not block.

    Raises:
        BlockingIOError: the timeout is 0 and the backlog of the server is full.
        OSError: no server is listening at the path, the server does not accept the connection before the timeout,
            or the server belongs to another user.
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
    """Connect to the resident server of a home, and return the connected socket.

    Raises:
        NoResident: no resident server is running, or the server cannot be reached.
    """
    began = time.monotonic()
    try:
        channel = open_socket(os.path.join(home, SOCKET), timeout_seconds=ANSWER_SECONDS)
        channel.settimeout(max(0.1, ANSWER_SECONDS - (time.monotonic() - began)))  # the timeout applies to `ask`
        return channel
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NoResident from None
    except OSError as error:  # `OSError` includes a timeout
        raise NoResident(f"the resident server cannot be reached: {error.strerror or error}") from None


def encode_line(kind: str, **members: Any) -> bytes:
    """Return a request to the resident server as a JSON line that is not an MCP message. `kind` is the name of the
    request, and `members` are the other members of the JSON object.
    """
    import json  # imported here because the import is slow and most homes have no resident server

    return json.dumps({"parley": kind, "v": HELLO_VERSION, **members}).encode() + b"\n"


def decode_answer(line: bytes) -> dict[str, Any]:
    """Return the JSON object in `line`, the server's response to a request that `encode_line` encoded.

    Raises:
        NoResident: the response is not valid JSON, so it does not come from a resident server.
        Refused: the server rejected the request; the message is its reason.
    """
    import json

    try:
        answer = json.loads(line)
    except ValueError:
        raise NoResident("the resident server sent a response that is not JSON") from None
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        reason = answer.get("reason") if isinstance(answer, dict) else None
        raise Refused(str(reason or "it gave no reason"))
    return answer


def ask(channel: socket.socket, kind: str, **members: Any) -> dict[str, Any]:
    """Send the request `kind` with the given members to the server, as a line that `encode_line` returns. Return
    the server's response as a JSON object.

    Raises:
        NoResident: the server ended, did not respond, or sent a response that is too long or not JSON.
        Refused: the server rejected the request; the message is its reason.
    """
    answer = b""
    until = time.monotonic() + (channel.gettimeout() or ANSWER_SECONDS)
    try:
        channel.sendall(encode_line(kind, **members))
        while not answer.endswith(b"\n"):
            channel.settimeout(max(0.1, until - time.monotonic()))
            # this reads only the response, because the server sends nothing else until the client sends more
            piece = channel.recv(4096)
            if not piece:
                raise NoResident("the resident server ended during the handshake")
            answer += piece
            if len(answer) > MAX_ANSWER_BYTES:
                raise NoResident(f"the resident server sent a response of more than {MAX_ANSWER_BYTES:,} bytes")
    except OSError as error:
        raise NoResident(f"the resident server does not answer: {error.strerror or error}") from None
    return decode_answer(answer)
