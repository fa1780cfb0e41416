"""Other processes of a home, and the messages on a link to one of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Raw

from kit.system.commands import TIMEOUT_SECONDS
from parley.client import ServerProcess
from parley.ports.peers import Link, Peers
from parley.wire.jsonrpc import Message, encode, error_of

__all__ = ["TIMEOUT_SECONDS", "LinkRecorder", "Peer", "StartPeer", "leaving", "saying"]

TESTS: Final = Path(__file__).parents[2]


class Peer:
    """Another process of the home."""

    address: str
    _process: ServerProcess

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def start(self, home: Path, most_files: int) -> None:
        command = (sys.executable, "-m", "kit.servers.peer_program", str(home), str(most_files))
        self._process = ServerProcess(command, cwd=TESTS)
        await self._process.start(on_message=self._lines.put_nowait, on_end=lambda _: None)
        self.address = await self.received()

    async def received(self) -> Any:
        """Return the next message that the peer received."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return json.loads(await self._lines.get())

    def tells(self, method: str, params: str) -> None:
        self._process.send(f"{method} {params}\n".encode())

    async def killed(self) -> None:
        self._process.kill()
        await self._process.close()

    def stopped(self) -> None:
        """Stop the process with SIGSTOP during the block."""
        os.kill(self._process.pid, signal.SIGSTOP)

    async def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        await self._process.close()


StartPeer = Callable[..., Awaitable[Peer]]


class LinkRecorder:
    """Records everything that a link reports, in order."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[object] = asyncio.Queue()

    async def on(self, peers: Peers, address: str) -> Link:
        link = await peers.connect(address, on_notification=self.on_notification, on_lost=self.on_lost)
        assert link is not None
        return link

    def answered(self, message: Message) -> None:
        self._received.put_nowait(("failed",) if error_of(message) else ("answered", message.id))

    async def next(self) -> object:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._received.get()

    def nothing_more(self) -> bool:
        return self._received.empty()

    def on_notification(self, method: str, params: Raw) -> None:
        self._received.put_nowait((method, json.loads(bytes(params))))

    def on_lost(self) -> None:
        self._received.put_nowait("gone")


def saying(*lines: str) -> bytes:
    """Build a message that makes a peer send these lines."""
    return encode({"say": lines})


def leaving(*lines: str) -> bytes:
    """Build a message that makes a peer send these lines and close the connection."""
    return encode({"say": lines, "leave": True})
