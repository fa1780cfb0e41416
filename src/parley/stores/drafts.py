"""Logs that are written to the database page by page, and are conversations when they are whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from parley.conversation.log import Entry
from parley.ports.store import Summary
from parley.stores import rows
from parley.stores.batch import Batch
from parley.wire.ids import START, ConversationId, Seq

if TYPE_CHECKING:
    from sqlite3 import Connection

    from parley.stores.locks import Owners

__all__ = ["SqliteDraft"]


class Write(Protocol):
    def __call__(self, work: Callable[[Connection], Any], batch: Batch | None = None) -> Awaitable[Any]: ...


class SqliteDraft:
    """The port `Draft`. Its row is locked from before its first entry until it is finished or dropped."""

    def __init__(self, row: int, owners: Owners, write: Write, clear: Callable[[], Awaitable[None]]) -> None:
        """`clear` removes what counts as deleted, as far as that can be done now."""
        self._row, self._owners, self._write, self._clear = row, owners, write, clear
        self._last = START
        self._is_open = True

    async def add(self, entries: Sequence[Entry]) -> None:
        batch = Batch(entries)
        await self._write(partial(rows.add_to_draft, row=self._row, batch=batch), batch)
        self._last = Seq(self._last + batch.rows)

    async def finish(self, conversation_id: ConversationId, summary: Summary, *, archived: bool = False) -> None:
        finish = partial(
            rows.finish_draft,
            row=self._row,
            last=self._last,
            conversation_id=conversation_id,
            summary=summary,
            archived=archived,
        )
        await self._write(finish)
        self._close()

    async def drop(self) -> None:
        if self._is_open:
            self._close()
            await self._clear()

    def _close(self) -> None:
        self._is_open = False
        self._owners.free(self._row)
