"""Exports a conversation from the store to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from parley.app.files.homes import entries_until
from parley.conversation.export_format import ExportHead, entry_line, head_line
from parley.ports.store import Store
from parley.stores.sqlite.files import AtomicFile, directory_of, sync_directory
from parley.wire.ids import ConversationId

__all__ = ["atomic_write", "export_conversation"]


async def export_conversation(store: Store, named: str, write: Callable[[bytes], object], *, now: float) -> None:
    """Export the conversation with the id `named`, by calling `write` once for each line of the export.

    `now` is the time of the export, in seconds since the epoch. Entries that another process appends during the
    export are not exported.

    Raises:
        UnknownConversation: the conversation does not exist, or was deleted during the export.
        StoreError: the conversation cannot be read.
    """
    conversation_id = ConversationId(named)
    head = await store.head(conversation_id)
    summary = head.summary
    write(
        head_line(
            ExportHead(
                conversation_id=conversation_id,
                last=head.last,
                exported_at=now,
                archived=head.archived,
                title=summary.title,
                cwd=summary.cwd,
                model=summary.model,
            )
        )
    )
    async for entry in entries_until(store, conversation_id, until=head.last):
        write(entry_line(entry))


@contextmanager
def atomic_write(path: str, *, over: bool) -> Iterator[BinaryIO]:
    """Open a new file for writing, and yield it. The file appears at `path` only if the `with` block ends without
    an error. At that time, the file is complete and synced to disk.

    If `over` is True, an existing file is replaced.

    Raises:
        FileExistsError: the file exists and `over` is False. The file is not changed.
        OSError: the file cannot be written.
    """
    with AtomicFile(path) as atomic:
        with open(atomic.name, "wb") as file:
            yield file
        atomic.commit(overwrite=over)
    sync_directory(directory_of(path))
