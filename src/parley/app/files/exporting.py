"""Export of a conversation of the store to a file."""

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
    """Write a conversation as it is now; other processes may continue it meanwhile.

    Raises:
        UnknownConversation: it does not exist, or was deleted meanwhile.
        StoreError: it cannot be read.
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
    """Write a file atomically: it appears, complete and synced, when the block ends without an error.

    `over`: replace an existing file.

    Raises:
        FileExistsError: the file exists; it is not changed.
        OSError: it cannot be written.
    """
    with AtomicFile(path) as atomic:
        with open(atomic.name, "wb") as file:
            yield file
        atomic.commit(overwrite=over)
    sync_directory(directory_of(path))
