"""Carries the messages of a session with a tool server's program. Each message is a line on stdin or stdout of the
program.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from parley.rpc.session import Outgoing, Session
from parley.wire.framing import LineFramer
from parley.wire.jsonrpc import RequestId

if TYPE_CHECKING:
    from collections.abc import Callable

    from parley.tools.servers.program import Program

__all__ = ["ProgramCarrier"]

PIPE_SECONDS: Final = 0.5
"""The maximum time, in seconds, for which the remaining output of a program is read after the program has ended.
The time is limited because another process may keep the pipe open.
"""


class ProgramCarrier:
    """Carries messages between a session and a running program. The carrier does not end the program."""

    def __init__(self, program: Program, session: Session, *, max_bytes: int, lost: Callable[[], None]) -> None:
        """Begin to transfer messages. `session` receives the messages from the program. `max_bytes` is the maximum
        size, in bytes, of a message from the program. `lost` is called when the program ends or closes its output.
        """
        self._program, self._session, self._lost = program, session, lost
        self._max_bytes = max_bytes
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._receiving = asyncio.create_task(self._receive())
        self._others = asyncio.create_task(self._send()), asyncio.create_task(self._watch())

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def send(self, message: Outgoing) -> None:
        self._queue.put_nowait(message.frame + b"\n")

    def cancel(self, request_id: RequestId, notice: bytes | None) -> None:
        if notice is not None:
            self.send(Outgoing(notice))

    def set_version(self, version: str, *, is_modern: bool) -> None:
        pass

    def listen(self) -> None:
        pass

    async def close(self) -> None:
        """Stop transferring messages, and wait until the tasks that transfer them have ended."""
        tasks = (self._receiving, *self._others)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self) -> None:
        framer = LineFramer(self._max_bytes)
        try:
            while data := await self._program.read():
                for frame in framer.feed(data):
                    self._session.receive(frame)
                await asyncio.sleep(0)  # a program that writes without end must not block the event loop
        finally:
            self._session.end()
            self._lost()

    async def _send(self) -> None:
        try:
            while True:
                await self._program.write(await self._queue.get())
        except OSError:
            self._receiving.cancel()  # a program that does not read its input cannot respond

    async def _watch(self) -> None:
        await self._program.wait()
        await asyncio.wait([self._receiving], timeout=PIPE_SECONDS)
        self._receiving.cancel()
