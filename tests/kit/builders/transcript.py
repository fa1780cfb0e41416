"""A `Transcript` without a runtime: a real log and history, and a record of all calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.history import History
from parley.conversation.log import ItemKind, Log, LogPayload
from parley.conversation.queue import Queue
from parley.conversation.records import CommandOutput
from parley.conversation.usage import UsageTotals
from parley.wire.events import OutputStream
from parley.wire.ids import CallId

__all__ = ["Appended", "OutputShown", "RecordingTranscript", "TextShown"]


class Appended(NamedTuple):
    """An append with all its entries."""

    payloads: tuple[LogPayload, ...]


class TextShown(NamedTuple):
    """A delta of a text, which is shown and not stored."""

    kind: ItemKind
    text: str


class OutputShown(NamedTuple):
    """A delta of the output of a command."""

    call_id: CallId
    stream: OutputStream
    data: bytes


class RecordingTranscript:
    """A `Transcript` in memory. The entries that it starts with are in the log and the history, but not in
    `did`."""

    def __init__(self, *before: LogPayload, appended: Callable[[], None] = lambda: None) -> None:
        self.history, self.log, self.usage, self.queue = History(), Log(), UsageTotals(), Queue()
        self.did: list[object] = []
        """All calls, in order. Other doubles of the same test add theirs too."""
        self._appended = appended
        """Called after each append."""
        self._grown = asyncio.Event()
        self._keep(before)

    @property
    def payloads(self) -> list[LogPayload]:
        """Return all appended entries."""
        return [one for entry in self.did if isinstance(entry, Appended) for one in entry.payloads]

    @property
    def shown(self) -> list[TextShown | OutputShown]:
        """Return all deltas that were shown."""
        return [entry for entry in self.did if isinstance(entry, TextShown | OutputShown)]

    def write(self, *payloads: LogPayload) -> None:
        """Append without waiting."""
        self._keep(payloads)
        self.did.append(Appended(payloads))
        self._grown.set()
        self._appended()

    async def until(self, number: int) -> None:
        """Wait until this many entries were appended."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(self.payloads) < number:
                self._grown.clear()
                await self._grown.wait()

    def _keep(self, payloads: tuple[LogPayload, ...]) -> None:
        self.log.append(payloads, at=0.0)
        for one in payloads:
            self.history.apply(one)
            self.usage.apply(one, at=0.0)

    # --- as a transcript -----------------------------------------------------------------

    async def append(self, *payloads: LogPayload) -> None:
        self.write(*payloads)

    async def durable(self) -> None:
        return

    def extend(self, kind: ItemKind, text: str) -> None:
        self.log.extend(kind, text)
        self.did.append(TextShown(kind, text))

    def unfinished(self, kind: ItemKind) -> str:
        item = self.log.open.get(kind)
        return item.text() if item else ""

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        for _ in self.log.extend_output(call_id, stream, data):
            pass
        self.did.append(OutputShown(call_id, stream, data))

    def output_so_far(self, call_id: CallId) -> CommandOutput | None:
        return next(self.log.output_records(call_id), None)
