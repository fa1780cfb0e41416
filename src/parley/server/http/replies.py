"""How the requests of one POST are answered: as JSON, or as a stream of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.ports.http import MessageStream
from parley.ports.outbox import Outbox
from parley.server.session import SILENT

__all__ = ["JsonReply", "StreamReply"]


class JsonReply:
    """Collects the answers. Notifications that belong to the requests are discarded."""

    notifications: Outbox = SILENT

    def __init__(self, requests: int, questions: Outbox) -> None:
        """`requests` is the number of answers to wait for."""
        self.questions = questions
        self.answers: list[bytes] = []
        self._left = requests
        self._done = asyncio.Event()

    def answer(self, frame: bytes | None) -> None:
        if frame is not None:
            self.answers.append(frame)
        self._left -= 1
        if self._left <= 0:
            self._done.set()

    async def done(self) -> None:
        """Return when every request was answered or dropped."""
        await self._done.wait()


class _WhileOpen:
    """An outbox that sends to a stream while it is open, and then to another outbox."""

    def __init__(self, stream: MessageStream, then: Outbox) -> None:
        self._stream, self._then = stream, then

    @property
    def _out(self) -> Outbox:
        return self._then if self._stream.closed else self._stream

    @property
    def writable(self) -> bool:
        return self._out.writable

    def send(self, frame: bytes) -> None:
        self._out.send(frame)

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._out.when_writable(wake)


class StreamReply:
    """Sends everything that belongs to the requests on one stream, which ends with the last answer."""

    def __init__(self, stream: MessageStream, requests: int, questions: Outbox) -> None:
        """If the client closes the stream, its questions go to `questions`."""
        self.notifications: Outbox = stream
        self.questions: Outbox = _WhileOpen(stream, questions)
        self._stream, self._left = stream, requests

    def answer(self, frame: bytes | None) -> None:
        if frame is not None:
            self._stream.send(frame)
        self._left -= 1
        if self._left <= 0:
            self._stream.end()
