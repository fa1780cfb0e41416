"""Where a turn writes down what happens."""

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
    """One conversation, as its running turn sees it."""

    @property
    def history(self) -> History: ...

    @property
    def spending(self) -> UsageTotals: ...

    async def append(self, *happened: LogPayload) -> None:
        """Write these down, all or none, right behind each other; then readers may see them."""
        ...

    async def durable(self) -> None:
        """Return when no append is under way: what the history holds is durable then."""
        ...

    def extend(self, kind: ItemKind, text: str) -> None:
        """Show more of what is being said. Not written down: the event that ends it will be."""
        ...

    def unfinished(self, kind: ItemKind) -> str:
        """What was shown of an item that no event has ended; empty when there is none."""
        ...

    def show_output(self, call_id: CallId, stream: OutputStream, data: bytes) -> None:
        """Show more of what a command says. Its head and tail are kept; see `kept_output`."""
        ...

    def kept_output(self, call_id: CallId) -> CommandOutput | None:
        """The record to append right in front of the event that ends the command or patch.

        None when nothing was said: then there is nothing to append.
        """
        ...
