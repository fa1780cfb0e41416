"""The transcript of a turn that no runtime keeps: a real log and a real history, and who did what when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from kit.system.commands import PATIENCE_SECONDS
from parley.conversation.history import History
from parley.conversation.log import ItemKind, Log, LogPayload
from parley.conversation.records import CommandOutput
from parley.conversation.usage import UsageTotals
from parley.wire.events import OutputStream
from parley.wire.ids import CallId

__all__ = ["Appended", "RecordingTranscript", "Said", "Shown"]


class Appended(NamedTuple):
    """One append, all of it."""

    happened: tuple[LogPayload, ...]


class Said(NamedTuple):
    """More of a text, shown and not written down."""

    kind: ItemKind
    text: str


class Shown(NamedTuple):
    """More of what a command says."""

    call_id: CallId
    stream: OutputStream
    data: bytes


class RecordingTranscript:
    """A `Transcript` in memory. What it begins with stands in the log and the history alone."""

    def __init__(self, *before: LogPayload, appended: Callable[[], None] = lambda: None) -> None:
        self.history, self.log, self.usage = History(), Log(), UsageTotals()
        self.did: list[object] = []
        """What was done here, in order; whoever works beside it writes down here what it did as well."""
        self._appended = appended
        """Called after each append."""
        self._grown = asyncio.Event()
        self._keep(before)

    @property
    def happened(self) -> list[LogPayload]:
        """All that was appended."""
        return [one for entry in self.did if isinstance(entry, Appended) for one in entry.happened]

    @property
    def shown(self) -> list[Said | Shown]:
        """All that was only shown."""
        return [entry for entry in self.did if isinstance(entry, Said | Shown)]

    def write(self, *happened: LogPayload) -> None:
        """What `append` does, for somebody who cannot wait."""
        self._keep(happened)
        self.did.append(Appended(happened))
        self._grown.set()
        self._appended()

    async def until(self, number: int) -> None:
        """Wait for so many things to be appended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.happened) < number:
                self._grown.clear()
                await self._grown.wait()

    def _keep(self, happened: tuple[LogPayload, ...]) -> None:
        self.log.append(happened, at=0.0)
        for one in happened:
            self.history.apply(one)
            self.usage.apply(one, at=0.0)

    # --- as a transcript -----------------------------------------------------------------

    async def append(self, *happened: LogPayload) -> None:
        self.write(*happened)

    async def durable(self) -> None:
        return

    def extend(self, kind: ItemKind, text: str) -> None:
        self.log.extend(kind, text)
        self.did.append(Said(kind, text))

    def unfinished(self, kind: ItemKind) -> str:
        item = self.log.open.get(kind)
        return item.text() if item else ""

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        for _ in self.log.extend_output(call_id, stream, data):
            pass
        self.did.append(Shown(call_id, stream, data))

    def kept_output(self, call_id: CallId) -> CommandOutput | None:
        return next(self.log.output_records(call_id), None)
