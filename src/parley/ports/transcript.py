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
        """Append either all entries or none, without other entries between them.

        Return when the entries are durable and readers may see them.
        """
        ...

    async def durable(self) -> None:
        """Wait until no append is in progress, so that all entries of the log are durable."""
        ...

    def extend(self, kind: ItemKind, text: str) -> None:
        """Append `text` to the open text of a kind, and send it to clients as a delta. If no text of this kind is
        open, open one.

        The delta is not stored, because the event that ends the text contains the complete text and is stored.
        """
        ...

    def unfinished(self, kind: ItemKind) -> str:
        """Return what the model has written so far of the open text of a kind; an empty string if no text of this
        kind is open.
        """
        ...

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        """Send further output of a command to clients. Of a long output, only the beginning and the end are stored
        (`output_so_far`).
        """
        ...

    def output_so_far(self, call_id: CallId) -> CommandOutput | None:
        """Return the record with the stored output of the call `call_id`, which is a command or a patch; None if
        there was no output. The caller appends the record directly before the event that ends the command or the
        patch.
        """
        ...
