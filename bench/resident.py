"""A resident server for measurements, and its HTTP clients."""

from __future__ import annotations

import json
import re
import select
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from bench.pipe import Gone
from bench.servers import MODEL, Parley, process_cpu_seconds

__all__ = ["HttpPeer", "Resident", "resident", "until_all_ended"]

READ_BYTES: Final = 1024 * 1024
TIMEOUT_SECONDS: Final = 120.0
DELTA: Final = b'"method":"agent_message_delta"'
END: Final = b'"method":"task_complete"'
SNAPSHOT: Final = b'"method":"notifications/initial_state"'
_SETTINGS: Final = ("serve.requests_per_second=0", "serve.max_connections=4096")


class Resident:
    """A running `parley serve` process."""

    def __init__(self, process: subprocess.Popen[bytes], environ: dict[str, str], work: Path) -> None:
        assert process.stdout is not None
        self.environ, self.work, self.pid = environ, work, process.pid
        if not (line := process.stdout.readline()):
            raise Gone("parley serve did not start")
        self.process = process
        self.url, self.token, self.page = (json.loads(line)[name] for name in ("url", "token", "page"))

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, in seconds."""
        return process_cpu_seconds(self.pid)

    def resident_kib(self) -> int:
        """Return the resident memory of the process, in KiB."""
        return int(Path(f"/proc/{self.pid}/status").read_text().partition("VmRSS:")[2].split()[0])


@contextmanager
def resident(
    base_url: str, *, env: Mapping[str, str] | None = None, settings: Sequence[str] = ()
) -> Iterator[Resident]:
    """Run a resident server with a new home until the block ends.

    `env` and `settings` are additional variables and values of the option `-c`.
    """
    overrides = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
    with Parley().home(base_url) as (environ, work), (work.parent / "serve.log").open("wb") as errors:
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", "parley", "serve", "--json", *overrides),
            env={**environ, **(env or {})},
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            yield Resident(process, environ, work)
        finally:
            process.terminate()
            process.terminate()
            process.wait(timeout=TIMEOUT_SECONDS)
            assert process.stdout is not None
            process.stdout.close()


class HttpPeer:
    """An HTTP client with one connection for requests and one connection for the GET stream. It does as little work
    as possible, so that the speed of the server determines the result."""

    def __init__(self, server: Resident) -> None:
        parts = urlsplit(server.url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._head = (
            f"Host: {parts.netloc}\r\nAuthorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\n"
        )
        self._id = 0
        self.name = ""
        """The conversation that the client streams, if the caller has set it."""
        self._requests = self._connect()
        self.stream: socket.socket | None = None
        self._tail = b""
        client = {"name": "bench", "version": "1"}
        self.call("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        if self.stream is not None:
            self.stream.close()

    def call(self, method: str, params: object) -> Any:
        """Send a request. Return its result."""
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        body = json.dumps(message).encode()
        if select.select((self._requests,), (), (), 0)[0]:  # the server has closed the idle connection
            self._requests.close()
            self._requests = self._connect()
        head = f"POST /mcp HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._requests.sendall(head.encode() + body)
        answer = self._until(self._requests, b"\r\n\r\n")
        found, _, rest = answer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", found)
        if not found.startswith(b"HTTP/1.1 200") or length is None:
            raise Gone(f"HTTP: {answer[:200]!r}")
        while len(rest) < int(length[1]):
            rest += self._requests.recv(READ_BYTES)
        if session := re.search(rb"(?i)mcp-session-id: (\S+)", found):
            self._head += f"Mcp-Session-Id: {session[1].decode()}\r\n"
        return json.loads(rest)["result"]

    def tool(self, name: str, **arguments: Any) -> Any:
        return self.call("tools/call", {"name": name, "arguments": arguments})["structuredContent"]

    def create(self, work: Path) -> str:
        return str(self.tool("conversationCreate", prompt="", model=MODEL, cwd=str(work))["conversation_id"])

    def follow(self, conversation: str) -> None:
        """Stream a conversation. Return when its snapshot begins to arrive."""
        self.tool("conversationStream", conversation_id=conversation)
        self.stream = self._connect()
        self.stream.sendall(f"GET /mcp HTTP/1.1\r\n{self._head}\r\n".encode())
        self._until(self.stream, b"initial_state")

    def follow_all(self, conversations: Sequence[str]) -> None:
        """Stream conversations over one GET stream. Return when all snapshots have arrived."""
        self.follow(conversations[0])
        assert self.stream is not None
        left = len(conversations) - 1
        for one in conversations[1:]:
            self.tool("conversationStream", conversation_id=one)
            if select.select((self.stream,), (), (), 0)[0]:
                left -= self.stream.recv(READ_BYTES).count(SNAPSHOT)
        while left > 0:
            left -= self.stream.recv(READ_BYTES).count(SNAPSHOT)

    def until_ended(self) -> None:
        """Read the stream until a turn has ended."""
        while not self.read()[1]:
            pass

    def say(self, conversation: str, text: str) -> None:
        content = [{"type": "text", "text": text}]
        self.tool("conversationSendMessage", conversation_id=conversation, content=content)

    def read(self) -> tuple[int, int]:
        """Read the available data of the stream. Return the number of deltas and the number of turn ends in it."""
        assert self.stream is not None
        data = self.stream.recv(READ_BYTES)
        if not data:
            raise Gone("the server ended a stream")
        data, known = self._tail + data, len(self._tail)
        counts = tuple(data.count(marker) - data[:known].count(marker) for marker in (DELTA, END))
        self._tail = data[-max(len(DELTA), len(END)) + 1 :]
        return counts[0], counts[1]

    def _connect(self) -> socket.socket:
        channel = socket.create_connection(self._address, timeout=TIMEOUT_SECONDS)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return channel

    def _until(self, channel: socket.socket, marker: bytes) -> bytes:
        received = b""
        while marker not in received:
            data = channel.recv(READ_BYTES)
            if not data:
                raise Gone("the server closed a connection")
            received += data
        return received


def until_all_ended(peers: Sequence[HttpPeer]) -> list[int]:
    """Read the streams of all clients until the turn has ended on each of them. Return the number of deltas for
    each client."""
    deltas, left = dict.fromkeys(peers, 0), len(peers)
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            assert peer.stream is not None
            selector.register(peer.stream, selectors.EVENT_READ, peer)
        while left:
            if not (ready := selector.select(TIMEOUT_SECONDS)):
                raise Gone("the streams are silent")
            for key, _ in ready:
                some, ends = key.data.read()
                deltas[key.data] += some
                left -= ends
    return list(deltas.values())
