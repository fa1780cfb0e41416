"""The port of the log as a running turn sees it."""

from __future__ import annotations

from typing import Protocol

from parley.conversation.history import History
from parley.conversation.log import ItemKind, LogPayload
from parley.conversation.records import CommandOutput
from parley.conversation.usage import UsageTotals
from parley.wire.events import OutputStream
from parley.wire.ids import CallId

__all__ = ["Transcript"]


class Transcript(Protocol):
    """The conversation of a running turn."""

    @property
    def history(self) -> History: ...

    @property
    def usage(self) -> UsageTotals: ...

    async def append(self, *payloads: LogPayload) -> None:
        """Append entries, all or none, without others between them; return when they are durable and readers may
        see them.
        """
        ...

    async def durable(self) -> None:
        """Wait until no append is under way, so that all of the history is durable."""
        ...

    def extend(self, kind: ItemKind, text: str) -> None:
        """Extend an open item and show the delta. The delta is not stored, but the event that ends the item is."""
        ...

    def unfinished(self, kind: ItemKind) -> str:
        """Return the text of an open item; empty if there is none."""
        ...

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        """Show more output of a command. Its head and tail are stored (`kept_output`)."""
        ...

    def kept_output(self, call_id: CallId) -> CommandOutput | None:
        """Return the record to append directly before the event that ends the command or patch; None if there was
        no output."""
        ...
