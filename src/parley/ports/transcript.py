"""The interface through which a running turn uses the log."""

from __future__ import annotations

from typing import Protocol

from parley.conversation.history import History
from parley.conversation.log import ItemKind, LogPayload
from parley.conversation.queue import Queue
from parley.conversation.records import CommandOutput
from parley.conversation.usage import UsageTotals
from parley.wire.events import OutputStream
from parley.wire.ids import CallId

__all__ = ["Transcript"]


class Transcript(Protocol):
    """The log of a conversation, with the operations that a running turn needs."""

    @property
    def history(self) -> History: ...

    @property
    def usage(self) -> UsageTotals: ...

    @property
    def queue(self) -> Queue: ...

    async def append(self, *payloads: LogPayload) -> None:
        """Append the payloads as consecutive entries. Append either all of them or none.

        Return when the entries are durable and readers may see them.
        """
        ...

    async def durable(self) -> None:
        """Wait until no append is in progress, so that all entries of the log are durable."""
        ...

    def extend(self, kind: ItemKind, text: str) -> None:
        """Append `text` to the open item of the given kind, and send `text` to clients as a delta. If there is no
        open item of this kind, begin one.

        The delta is not stored. The event that ends the open item is stored and contains the complete text.
        """
        ...

    def unfinished(self, kind: ItemKind) -> str:
        """Return the text that the open item of the given kind contains so far; an empty string if there is no open
        item of this kind.
        """
        ...

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        """Send `data`, the next output of the tool call `call_id` on `stream`, to clients. If the output is long,
        only its beginning and its end are stored (`output_so_far`).
        """
        ...

    def output_so_far(self, call_id: CallId) -> CommandOutput | None:
        """Return the record with the stored output of the tool call `call_id`, which runs a command or applies a
        patch; None if there was no output. The record must be appended directly before the event that ends the
        command or the patch.
        """
        ...
