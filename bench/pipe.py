"""The pipes to a server process. The reader does as little work as possible, so that the speed of the server
determines the result."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

__all__ = ["Arrivals", "Gone", "Pipe", "Silent"]

READ_BYTES: Final = 1024 * 1024
TIMEOUT_SECONDS: Final = 20
"""The maximum time in seconds in which a server may send nothing. A peer that starts 100 turns at once sends
nothing for some seconds."""
EXIT_SECONDS: Final = 1
"""The maximum time in seconds for a server to exit after its stdin was closed. One of the peers never exits by
itself."""


class Gone(Exception):
    """Raised when the server exited, refused a request or sent nothing for too long, or when its work failed."""


class Silent(Gone):
    """Raised when the server sent nothing for `TIMEOUT_SECONDS`."""


class Arrivals(NamedTuple):
    """The result of `Pipe.count`."""

    deltas: int
    """The number of received deltas."""
    ended_at: tuple[float, ...]
    """The time at which each turn ended, in seconds of `time.perf_counter()`."""


class _Message(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_messages: Final = msgspec.json.Decoder(_Message)


class Pipe:
    """A server process with pipes to its stdin and from its stdout. All methods block. Output is read only when a
    method needs it."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, stderr: Path) -> None:
        self.started_at = time.perf_counter()
        with stderr.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env, cwd=cwd, bufsize=0
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._held = b""
        self._last_id = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Close the stdin of the server and wait for its exit. Kill the server if it does not exit in
        `EXIT_SECONDS`."""
        with self._process:
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                self._process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def request(self, method: str, params: object) -> int:
        """Send a request. Return its id."""
        self._last_id += 1
        self.write({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        return self._last_id

    def write(self, *messages: object) -> None:
        """Send messages together, with one write if the pipe has space for all of them."""
        data = b"".join(msgspec.json.encode(message) + b"\n" for message in messages)
        while data:
            data = data[os.write(self._stdin, data) :]

    def next_ids(self, number: int) -> list[int]:
        """Reserve ids for requests that the caller sends with `write`. Return the ids."""
        first = self._last_id + 1
        self._last_id += number
        return list(range(first, first + number))

    def call(self, method: str, params: object) -> Any:
        """Send a request. Return its result."""
        return self.answer(self.request(method, params))

    def answer(self, request_id: int) -> Any:
        """Return the result of a request. Skip all messages that arrive before it."""
        while True:
            line = self.line()
            message = _messages.decode(line)
            if message.id == request_id and message.method is None:
                if message.result is UNSET:
                    raise Gone(f"request {request_id} was refused: {line[:2000].decode()}")
                return msgspec.json.decode(message.result)

    def line_with(self, marker: bytes) -> bytes:
        """Return the next line that contains `marker`. Skip all lines before it."""
        while marker not in (line := self.line()):
            pass
        return line

    def until(self, marker: bytes) -> None:
        """Read until `marker` has arrived. Everything that was read remains available to `line`."""
        while marker not in self._held:
            self._held += self.read()

    def line(self) -> bytes:
        """Return the next line, without its line end."""
        parts: list[bytes] = []
        while True:
            head, found, tail = self._held.partition(b"\n")
            if found:
                self._held = tail
                return b"".join((*parts, head))
            parts.append(self._held)
            self._held = self.read()

    def count(self, delta: bytes, end: bytes, *, turns: int = 1) -> Arrivals:
        """Count deltas until `turns` turns have ended, or until the server sends nothing for `TIMEOUT_SECONDS`.

        Args:
            delta: A marker that occurs once in each delta notification, and in no other message.
            end: A marker that occurs once in the notification that ends a turn, and in no other message.
        """
        deltas = 0
        ended_at: list[float] = []
        block, self._held = self._held, b""
        while True:
            whole, found, rest = block.rpartition(b"\n")  # an incomplete line is counted when it is complete
            if found:
                deltas += whole.count(delta)
                ended_at += [time.perf_counter()] * whole.count(end)
                block = rest
                if len(ended_at) >= turns:
                    self._held = rest
                    return Arrivals(deltas, tuple(ended_at))
            try:
                block += self.read()
            except Silent:
                return Arrivals(deltas, tuple(ended_at))

    def read(self) -> bytes:
        """Return the next block of output as soon as some output has arrived."""
        if not self._poll.poll(TIMEOUT_SECONDS * 1000):
            raise Silent(f"the server sent nothing for {TIMEOUT_SECONDS} s")
        data = os.read(self._stdout, READ_BYTES)
        if not data:
            raise Gone(f"the server exited with {self._process.wait(EXIT_SECONDS)}")
        return data
