"""A server on two pipes, read as cheaply as Python can, so that it is the server that is measured."""

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
PATIENCE_SECONDS: Final = 20
"""How long a server may be silent: a peer that starts a hundred turns at once is, for some seconds."""
EXIT_SECONDS: Final = 1
"""How long a server may take to end; one of the peers does not end by itself."""


class Gone(Exception):
    """The server ended, refused, or is silent."""


class Silent(Gone):
    """The server said nothing for too long."""


class Arrivals(NamedTuple):
    """What one count saw."""

    deltas: int
    ended_at: tuple[float, ...]
    """When each turn ended, as `time.perf_counter()` has it."""


class _Message(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_messages: Final = msgspec.json.Decoder(_Message)


class Pipe:
    """A started server. Everything blocks; nothing is read before somebody wants it."""

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
        """Close its stdin and wait for its end; kill it if it does not come."""
        with self._process:
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                self._process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def request(self, method: str, params: object) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        self.write({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        return self._last_id

    def write(self, *messages: object) -> None:
        """Send messages in one go."""
        data = b"".join(msgspec.json.encode(message) + b"\n" for message in messages)
        while data:
            data = data[os.write(self._stdin, data) :]

    def next_ids(self, number: int) -> list[int]:
        """Ids for requests that are written by hand."""
        first = self._last_id + 1
        self._last_id += number
        return list(range(first, first + number))

    def call(self, method: str, params: object) -> Any:
        """Send a request and return its result."""
        return self.answer(self.request(method, params))

    def answer(self, request_id: int) -> Any:
        """The result of a request; what comes before it is skipped."""
        while True:
            line = self.line()
            message = _messages.decode(line)
            if message.id == request_id and message.method is None:
                if message.result is UNSET:
                    raise Gone(f"request {request_id} was refused: {line[:2000].decode()}")
                return msgspec.json.decode(message.result)

    def line_with(self, marker: bytes) -> bytes:
        """The next line that holds `marker`; what comes before it is skipped."""
        while marker not in (line := self.line()):
            pass
        return line

    def until(self, marker: bytes) -> None:
        """Read until `marker` has come, and keep everything for `line`."""
        while marker not in self._held:
            self._held += self.read()

    def line(self) -> bytes:
        """The next line."""
        parts: list[bytes] = []
        while True:
            head, found, tail = self._held.partition(b"\n")
            if found:
                self._held = tail
                return b"".join((*parts, head))
            parts.append(self._held)
            self._held = self.read()

    def count(self, delta: bytes, end: bytes, *, turns: int = 1) -> Arrivals:
        """Count deltas until so many turns have ended, or nothing comes any more."""
        deltas = 0
        ended_at: list[float] = []
        block, self._held = self._held, b""
        while True:
            whole, found, rest = block.rpartition(b"\n")  # a line that is cut is counted when it is whole
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
        """The next block, as it comes."""
        if not self._poll.poll(PATIENCE_SECONDS * 1000):
            raise Silent(f"nothing came for {PATIENCE_SECONDS} s")
        data = os.read(self._stdout, READ_BYTES)
        if not data:
            raise Gone(f"the server ended with {self._process.wait(EXIT_SECONDS)}")
        return data
